"""What an instance's server does around its engine: start it, kill it on `StopEngine`, start the next one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from dunlin.effects import Address, Effect, Message, Send
from dunlin.messages.engine import (
    ClosePeerRoom,
    EngineExited,
    EngineProgress,
    EngineReady,
    MapHost,
    OpenPeerRoom,
    StopEngine,
)
from dunlin.messages.group import group_of
from services.instance.core import InstanceCore
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.kv_audit import KvCacheAudit
from simulator.engine.layers import LayerSet
from simulator.engine.model import ProgressPoll, SimulatedEngine, SimulatedEngineSettings
from simulator.engine.peer_network import PeerNetwork
from simulator.links.ports import Fabric, make_fabric

LAST_WORDS = 16
"""Messages of an engine that are remembered."""
LATE_S = 0.01
"""Seconds by which words of an engine come after its successor's first."""
UNTRUSTED_SIGNALS = (4, 6, 7, 8, 11)
"""Signals after which the KV cache is not trusted, because the engine may have written anywhere."""


def tenant_lookup(core: InstanceCore) -> Callable[[int], str]:
    """A function from an engine's sequence number to its tenant. A group's member knows of a guest's request alone, and
    nothing of it may be read for another one.

    It is asked when an `Open` arrives at the engine. The member may have given the guest up since it sent that, and
    keeps its slots for the step that it sent behind it: the guest is whose it was until that step is answered.
    """

    def tenant_of(number: int) -> str:
        if group_of(number):
            steps = core.group_member.steps
            closing = steps.running.closing if steps.running is not None else []
            guest = steps.guests.get(number) or next((each for each in closing if each.number == number), None)
            return f"request {guest.opened.key}" if guest is not None else ""
        sequence = core.sequences.by_number(number)
        return sequence.place.tenant if sequence is not None else ""

    return tenant_of


class SimulatedEngineSupervisor:
    """Stands at the engine's address and forwards messages to the engine that runs there now.

    `engine` is the newest engine, `ended` holds its predecessors, `incarnation` counts them, as a live host does: what
    an engine says comes from it. `last_words`: what the newest said last. The KV cache, its `audit` and the `layers`
    that share its arena outlive engines. `is_kv_trusted`: the last engine did not end by a wild write.
    `memory_of(wish)`: the memory that a `MapHost` names; None: the mapping stays. `network`: the engines that it can
    meet, from its `node`; `fabric`: the links that it shares with others (None: links of its own).
    """

    def __init__(
        self,
        world: World,
        instance: Address,
        settings: SimulatedEngineSettings,
        tier: SimulatedHostMemory | None = None,
        tenant_of: Callable[[int], str] = lambda number: "",
        memory_of: Callable[[MapHost], SimulatedHostMemory | None] = lambda wish: None,
        network: PeerNetwork | None = None,
        node: str = "",
        fabric: Fabric | None = None,
    ) -> None:
        self.settings = settings
        self.ended: list[SimulatedEngine] = []
        self.incarnation = 0
        self.is_trusted = True
        self.last_words: deque[Message] = deque(maxlen=LAST_WORDS)
        ready = settings.ready
        self.audit = KvCacheAudit(ready.slots, tenant_of, len(ready.layers)) if settings.audit else None
        self.layers = LayerSet(ready, settings.weights_bytes)
        self._world = world
        self._instance = instance
        self._tier = tier if tier is not None else SimulatedHostMemory()
        self._memory_of = memory_of
        self._network = network
        self._node = node
        self._fabric = fabric or make_fabric(world.call_at)
        self.engine = self._start()

    @property
    def busy_s(self) -> float:
        """Seconds of steps of all engines so far."""
        seconds = self.engine.runner.busy_s
        for engine in self.ended:
            seconds += engine.runner.busy_s
        return seconds

    @property
    def moved_bytes(self) -> int:
        """Bytes that moves of all engines carried."""
        total = self.engine.moves.moved_bytes
        for engine in self.ended:
            total += engine.moves.moved_bytes
        return total

    def crash(self, signal: int = 9, code: int = 0, ended_by_us: bool = False, returns: bool = True) -> None:
        """End the engine process by a signal or a code; a successor starts `restart_s` later if it `returns`."""
        self._world.kill(self.engine.address)
        self.engine.died(self._world.now_s)
        if self._network is not None:
            self._network.ends.pop(self.engine.address, None)
        self.is_trusted = signal not in UNTRUSTED_SIGNALS
        exited = EngineExited(code, signal, ended_by_us, self.settings.restart_s, self.incarnation)
        self._world.post(self.engine.address, self._instance, exited, 0.0)
        self.ended.append(self.engine)
        self._world.add(self.engine.address, _Restart(self))
        if returns:
            self._world.post(self.engine.address, self.engine.address, ProgressPoll(), self.settings.restart_s)

    def repeat_last_words(self) -> None:
        """What the engine said last arrives once more, from it, when its successor has said that it is ready."""
        spoken = [message for message in self.last_words if not isinstance(message, EngineProgress)]
        before, speaker = self.incarnation, self.engine.address._replace(incarnation=self.incarnation)

        def arrive() -> None:
            if not self._world.is_up(self._instance):
                return
            if self.incarnation == before or EngineReady not in map(type, self.last_words):
                self._world.call_later(LATE_S, arrive)
                return
            for message in spoken:
                self._world.post(speaker, self._instance, message, LATE_S)

        self._world.call_later(LATE_S, arrive)

    def map_memory(self, wish: MapHost) -> None:
        """Let engines read and write the memory that `wish` names from now on."""
        memory = self._memory_of(wish)
        if memory is not None:
            self._tier.contents, self._tier.damaged = memory.contents, memory.damaged

    def restart(self) -> None:
        """Start the next engine process."""
        torn = self.engine.slots_being_written()
        if self.audit is not None:
            self.audit.engine_replaced(torn, self.is_trusted)
        layers = self.layers
        layers.engine_replaced()
        if self.audit is not None:
            self.audit.remapped(frozenset(layers.held), frozenset(layers.retained), layers.slots)
        self.engine = self._start()

    def _start(self) -> SimulatedEngine:
        address = Address("engine", self._instance.name)
        ports = self._fabric.ports(
            address.name,
            self._node,
            self.settings.links,
            lambda due: self._world.post(address, address, due, 0.0),
        )
        engine = SimulatedEngine(
            self._instance, self.settings, self._tier, ports, self.audit, self.layers, self._network
        )
        if self._network is not None and self.settings.has_agent:
            end = self._network.admit(address, ports, self.layers, self.audit, engine.rooms)
            engine.ready = replace(engine.ready, agent=end.agent)
        self.last_words.clear()
        self._world.add(address, _Watched(self, engine))
        self.incarnation += 1
        self._world.connect(self._instance, address, address._replace(incarnation=self.incarnation))
        return engine


_OF_THE_HOST = (StopEngine, MapHost, OpenPeerRoom, ClosePeerRoom)


@dataclass(slots=True)
class _Watched:
    """Takes out what is for the engine's host: `StopEngine`, the memory of a `MapHost`, and the rooms of peers."""

    supervisor: SimulatedEngineSupervisor
    engine: SimulatedEngine

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, _OF_THE_HOST):
            if isinstance(message, StopEngine):
                self.supervisor.crash(ended_by_us=True)
                return []
            if isinstance(message, OpenPeerRoom):
                return self.engine.peers.open_room(now_s, message)
            if isinstance(message, ClosePeerRoom):
                return self.engine.peers.close_room(now_s, message)
            self.supervisor.map_memory(message)
        effects = self.engine.receive(now_s, sender, message)
        for effect in effects:
            if isinstance(effect, Send):
                self.supervisor.last_words.append(effect.message)
        return effects


@dataclass(slots=True)
class _Restart:
    """Stands at the address while no engine runs, and starts the next one."""

    supervisor: SimulatedEngineSupervisor

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, ProgressPoll):
            self.supervisor.restart()
        return []
