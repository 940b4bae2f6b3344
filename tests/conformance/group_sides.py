"""The two groups under comparison: real engines of one process that map each other's memory, and modelled ones.

The real members are advanced piece by piece. The modelled ones share a clock that moves into a step, and past its end
only in `finish`: so a step that the real members have begun is one that the modelled ones have begun.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from dunlin.effects import Address, After, Send
from dunlin.messages.engine import Forget, Meet
from simulator.engine.errors import ContractBroken
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.kv_audit import KvCacheAudit
from simulator.engine.model import SimulatedEngine
from simulator.engine.peer_network import PeerNetwork
from simulator.links.ports import make_fabric
from tests.conformance.sides import modelled_settings
from tests.engine.build import nothing
from tests.engine.execution.members import Member

IDLE_TURNS = 50
"""Turns without an answer in which every member ends up waiting: a layer takes a few, so they wait in vain."""


class RealGroup:
    """Engines over one tiny checkpoint. `events[i]`: all answers of member i."""

    def __init__(self, directory: Path, count: int) -> None:
        self.members = [Member(number, directory, "deterministic") for number in range(count)]
        self.events: list[list[Any]] = [[] for _ in self.members]

    def meet_all(self) -> None:
        """Every member meets every other as that is now."""
        for me, other in _pairs(len(self.members)):
            self.tell(me, Meet(self.members[other].address, self.members[other].access.agent))

    def tell(self, member: int, message: Any) -> None:
        self.members[member].tell(message)
        self._collect(member)

    def advance(self, member: int, pieces: int) -> None:
        """Compute so many pieces of the running step, or of the first one; fewer where it waits for a peer."""
        each = self.members[member]
        for _ in range(pieces):
            if each.runner.busy:
                each.events += each.runner.work(lambda: True)
        self._collect(member)

    def is_early(self, member: int, layers: int) -> bool:
        """Whether it stands before the last layer: a peer needs more of it."""
        progress = self.members[member].runner.steps.progress
        return progress is None or progress[1] < layers - 1

    def finish(self) -> list[int]:
        """Compute all that can be computed; returns the members whose steps wait for a peer in vain."""
        idle = 0
        while idle < IDLE_TURNS and any(each.runner.busy for each in self.members):
            is_stuck = True
            for number, each in enumerate(self.members):
                if each.runner.busy:
                    each.events += each.runner.work(nothing)
                    is_stuck &= each.runner.is_waiting and not each.events
                self._collect(number)
            idle = idle + 1 if is_stuck else 0
        return [number for number, each in enumerate(self.members) if each.runner.busy]

    def close(self) -> None:
        for me, other in _pairs(len(self.members)):
            self.tell(me, forget(other))
        for each in self.members:
            each.close()

    def _collect(self, member: int) -> None:
        self.events[member] += self.members[member].answers()


class TwinGroup:
    """As many modelled engines, each with an audit. `broken`: what one takes for a breach of the contract, if any."""

    def __init__(self, like: Sequence[Member]) -> None:
        self.events: list[list[Any]] = [[] for _ in like]
        self.broken = ""
        self.engines: list[SimulatedEngine] = []
        self._now_s = 0.0
        self._timers: list[tuple[float, int, int, Any]] = []
        self._posted = 0
        self._by_address: dict[Address, int] = {}
        self._network = PeerNetwork(self._wake)
        self._fabric = make_fabric(lambda delay_s, act: None)  # no KV is moved
        for each in like:
            self._add(each)

    def meet_all(self) -> None:
        """Every member meets every other as that is now."""
        for me, other in _pairs(len(self.engines)):
            address = self.engines[other].address
            self.tell(me, Meet(address, self._network.ends[address].agent))

    def tell(self, member: int, message: Any) -> None:
        """Deliver a command or a timer, unless the contract was broken before."""
        if self.broken:
            return
        engine = self.engines[member]
        try:
            effects = engine.receive(self._now_s, self._instance(member), message)
        except ContractBroken as error:
            self.broken = str(error)
            return
        for effect in effects:
            if isinstance(effect, Send):
                self.events[member].append(effect.message)
            elif isinstance(effect, After):
                self._post(effect.delay_s, member, effect.message)

    def advance(self) -> None:
        """Let time pass up to a part of the running step that ends first; what is due by then comes."""
        ends = [
            step.since_s + step.end_in_s
            for engine in self.engines
            if (step := engine.runner.running) is not None and not step.is_waiting
        ]
        until_s = self._now_s + 0.25 * (min(ends) - self._now_s) if ends else self._now_s
        self._pass(until_s)
        self._now_s = max(self._now_s, until_s)

    def reach_safepoint(self, member: int, ticket: int) -> None:
        """Let time pass until the member has taken in an interrupt: its running step has a safepoint ahead. What
        follows from it at other members comes later, as the real ones have not gone on either.
        """
        while self._timers and not any(getattr(event, "ticket", 0) == ticket for event in self.events[member]):
            self._pop()

    def finish(self) -> None:
        self._pass(float("inf"))

    def _pass(self, until_s: float) -> None:
        while self._timers and self._timers[0][0] <= until_s and not self.broken:
            self._pop()

    def _pop(self) -> None:
        self._now_s, _, member, message = heappop(self._timers)
        self.tell(member, message)

    def _add(self, like: Member) -> None:
        number = self._by_address[like.address] = len(self.engines)
        settings = modelled_settings(like.loaded)
        audit = KvCacheAudit(like.loaded.slots, layers=len(like.loaded.decoder.kv))
        me = self._instance(number)
        ports = self._fabric.ports(me.name, "node", settings.links, lambda due: self._wake(like.address, due))
        engine = SimulatedEngine(me, settings, SimulatedHostMemory(), ports, audit, network=self._network)
        assert engine.address == like.address
        self._network.admit(engine.address, ports, engine.layers, audit, engine.rooms)
        self.engines.append(engine)

    def _instance(self, number: int) -> Address:
        return Address("instance", f"member-{number}", 1)

    def _wake(self, engine: Address, due: Any) -> None:
        self._post(0.0, self._by_address[engine], due)

    def _post(self, delay_s: float, member: int, message: Any) -> None:
        self._posted += 1
        heappush(self._timers, (self._now_s + delay_s, self._posted, member, message))


def forget(member: int) -> Forget:
    """A member is gone."""
    return Forget(Address("engine", f"member-{member}"))


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(me, other) for me in range(count) for other in range(count) if me != other]
