"""I4 and I8 for elastic groups: whose steps an instance computes, and where the tokens of a spread sequence lie."""

from collections.abc import Iterator

from dunlin.effects import Address, Message
from dunlin.messages.engine import Step
from dunlin.messages.group import group_of
from dunlin.messages.types import GroupKind
from services.instance.core import InstanceCore
from services.instance.group.leading.blocks import cut_off
from services.instance.group.leading.led_group import LedGroup
from services.instance.group.leading.spread import SpreadSequence
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.simulated import SimulatedCluster

TOLD_S = 2.0
"""Seconds after which a leader knows what its members have, and steps that wait for each other have ended."""

Lack = tuple[int, int, Address]
"""A sequence's number, a member's index, and its instance."""


class GroupStepWatcher(InvariantWatcher):
    """I4: an engine computes steps of the group alone that its instance's order names, with its members alone, and no
    two steps of groups wait for each other.
    """

    invariant = "I4"

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._ring_since_s: dict[tuple[int, ...], float] = {}

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        if not isinstance(message, Step) or not message.exchange:
            return
        order = self.cluster.core(sender).group_order
        if order is None or order.kind is not GroupKind.ELASTIC or group_of(message.exchange) != order.group:
            raise self.fail(f"{sender} follows {order} and computes exchange {group_of(message.exchange)}")
        names = {member.name for member in order.members}
        if not names.issuperset(peer.name for peer in message.peers):
            raise self.fail(f"{sender} computes with {message.peers}, and {order} has other members")

    def audit(self) -> None:
        now_s, waits = self.cluster.world.now_s, self._waits()
        rings = {ring: None for start in waits if (ring := _ring(start, waits))}
        self._ring_since_s = {ring: self._ring_since_s.get(ring, now_s) for ring in rings}
        for ring, since_s in self._ring_since_s.items():
            if now_s - since_s <= TOLD_S:
                continue
            # One leader that is heard is enough to end them.
            if not all(self.faults.was_disturbed(*self._concerned(exchange)) for exchange in ring):
                raise self.fail(f"exchanges {ring} have waited for each other since {since_s}")
            self.excuse("members of a disturbed group wait for each other")

    def _concerned(self, exchange: int) -> list[Address]:
        """The instances that follow the group of this exchange, or compute it still."""
        orders = [(core, core.group_order) for core in self.cluster.instances.values()]
        followers = [core for core, order in orders if order is not None and order.group == group_of(exchange)]
        steps = [(core, core.group_member.steps.running) for core, _ in orders]
        busy = [core for core, running in steps if running is not None and running.step.exchange == exchange]
        return [core.address for core in (*followers, *busy)]

    def _waits(self) -> dict[int, set[int]]:
        """By exchange: those that the engines of its other members compute instead."""
        all_of_them = {name: core.group_member.steps.running for name, core in self.cluster.instances.items()}
        running = {name: one.step for name, one in all_of_them.items() if one is not None}
        found: dict[int, set[int]] = {}
        for step in running.values():
            others = {running[peer.name].exchange for peer in step.peers if peer.name in running}
            found.setdefault(step.exchange, set()).update(others - {step.exchange})
        return found


class SpreadWatcher(InvariantWatcher):
    """I8: what is valid of a spread sequence stays bound where its leader takes it to lie."""

    invariant = "I8"

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._lacking_since_s: dict[Lack, float] = {}

    def audit(self) -> None:
        now_s = self.cluster.world.now_s
        lacks: dict[Lack, None] = {}
        for core in self.cluster.instances.values():
            led = core.led_group
            for spread in led.spreads if led is not None else ():
                lacks.update(dict.fromkeys(self._lacks(core, led, spread)))
        self._lacking_since_s = {lack: self._lacking_since_s.get(lack, now_s) for lack in lacks}
        for (number, member, address), since_s in self._lacking_since_s.items():
            if now_s - since_s > TOLD_S:
                self._is_excused(number, member, address)

    def _lacks(self, core: InstanceCore, led: LedGroup | None, spread: SpreadSequence) -> Iterator[Lack]:
        """The members that lack valid tokens which the leader takes to lie there."""
        if led is None or not spread.is_live:
            return
        # A block that is not valid may be of a member that has left, until the steps that name it are answered.
        for block in [*cut_off(spread.blocks, spread.sequence.valid), *spread.after_hole]:
            address = led.roster.address(block.member)
            member = self.cluster.core(address)
            if member is None or self.cluster.world.is_paused(address):
                continue
            guests = member.group_member.steps.guests
            guest = guests.get(spread.number)
            if guest is None or not guests.has(guest, block.start, block.stop):
                yield spread.number, block.member, address

    def _is_excused(self, number: int, member: int, address: Address) -> None:
        leaders = [core.address for core in self.cluster.instances.values() if core.led_group is not None]
        if not self.faults.was_disturbed(address, *leaders):
            raise self.fail(f"{address}, member {member}, lacks tokens of sequence {number} that its leader counts on")
        self.excuse("a disturbed member lacks tokens that its leader counts on")


def _ring(start: int, waits: dict[int, set[int]]) -> tuple[int, ...]:
    """The exchanges that wait for each other, `start` among them; empty: it waits for none that waits for it."""
    reached = _waited_for(start, waits)
    return tuple(sorted(one for one in reached if start in _waited_for(one, waits))) if start in reached else ()


def _waited_for(start: int, waits: dict[int, set[int]]) -> set[int]:
    """All that it waits for, directly or not."""
    reached: set[int] = set()
    rest = [start]
    while rest:
        for one in waits.get(rest.pop(), ()):
            if one not in reached:
                reached.add(one)
                rest.append(one)
    return reached
