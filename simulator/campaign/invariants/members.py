"""I4 and I8 between a group's leader and its members, at every event: what each may say to which, and what counts.

`groups.py` looks at the steps of engines and at where tokens lie; this file at the conversation, by its own account of
what members said.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dunlin.effects import Address, Gone, Message
from dunlin.messages.group import (
    GroupStep,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    MeetMembers,
    MemberReady,
    MembersMet,
    OpenGuest,
    group_of,
)
from dunlin.messages.types import GroupKind
from services.instance.core import InstanceCore
from services.instance.group.leading.led_group import LedGroup
from services.instance.group.leading.member_state import MemberState
from services.instance.group.leading.spread import SpreadSequence
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

FORGOTTEN_S = 5.0
"""Seconds after which a leader and its members know of each other's guests."""

TO_MEMBERS = (OpenGuest, GrowGuest, GroupStep)
TO_LEADERS = (MemberReady, GuestSlots, GuestRefused, GuestClosed, GroupStepDone)
"""All but the words that it is over, which a member says when it follows another order."""

OWN = 0
"""The leader's own index among its members."""

Members = tuple[Address, ...]
"""The members of a group by an order."""

Held = tuple[Address, int]
"""A member and the number of a guest there."""


@dataclass(slots=True)
class Meetings:
    """What the members of one group and its leader said to each other: the agents that each was told to meet and has
    not answered for, those that it has met since, and its own, by the indices of the members. An index belongs to
    another member once the leader has another state for it.
    """

    states: dict[int, MemberState] = field(default_factory=dict)
    told: dict[int, dict[int, dict[int, bytes]]] = field(default_factory=dict)
    reaches: dict[int, dict[int, bytes]] = field(default_factory=dict)
    agents: dict[int, bytes] = field(default_factory=dict)

    def have_met(self, member: int, others: Iterable[int]) -> bool:
        """Whether the member has met the others' agents of now."""
        met = self.reaches.get(member, {})
        return all(other in met and met[other] == self.agents.get(other) for other in others)

    def tell(self, state: MemberState, asked: MeetMembers) -> None:
        """The leader names the engines to meet, its own among them, which is said in no other message."""
        member = self._begin(state)
        told = {each.member: each.agent for each in asked.engines}
        self.told.setdefault(member, {})[asked.question] = told
        if OWN in told:
            self.agents[OWN] = told[OWN]

    def hear(self, state: MemberState, message: Message) -> None:
        """The member answers, is ready, or has lost all. Ready again with the same agent, it is met where it was."""
        member = self._begin(state)
        if isinstance(message, MembersMet):
            told = self.told.get(member, {}).pop(message.question, {})
            self.reaches[member] = {other: told[other] for other in message.met if other in told}
        elif isinstance(message, MemberReady):
            if self.agents.get(member, message.agent) != message.agent:
                self.reaches.pop(member, None)
            self.agents[member] = message.agent
        elif isinstance(message, GuestsLost | Gone):
            self.reaches.pop(member, None)
            self.agents.pop(member, None)
        if isinstance(message, Gone):
            self.told.pop(member, None)

    def _begin(self, state: MemberState) -> int:
        if self.states.get(state.index) is not state:
            self.told.pop(state.index, None)
            self.reaches.pop(state.index, None)
            self.states[state.index] = state
        return state.index


class ConversationWatcher(InvariantWatcher):
    """I4: a leader commands members of its own order alone, about members whose engines have met; a member answers the
    leader of its order alone. Exchanges come to a member in the order of their numbers, each once.
    """

    invariant = "I4"
    roles = ("instance",)

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._newest: dict[tuple[Address, Address, int], int] = {}
        self._meetings: dict[tuple[Address, int], Meetings] = {}
        self._differ_since_s: dict[tuple[Address, Members, Members], float] = {}

    def audit(self) -> None:
        """Members agree on which are in their group, but for orders that are on their way."""
        now_s = self.cluster.world.now_s
        differ = dict.fromkeys(self._differ())
        self._differ_since_s = {each: self._differ_since_s.get(each, now_s) for each in differ}
        for (address, by_leader, own), since_s in self._differ_since_s.items():
            if now_s - since_s <= FORGOTTEN_S:
                continue
            if not self.faults.was_disturbed(address, own[0], *self.cluster.of_role("global_manager")):
                raise self.fail(
                    f"{address} is in a group of {own} since {since_s}, and its leader in one of {by_leader}"
                )
            self.excuse("a disturbed member's order names others than its leader's")

    def _differ(self) -> Iterator[tuple[Address, Members, Members]]:
        """Members whose orders name others than their leaders' orders of the same group, with both."""
        orders = {core.address: core.group_order for core in self.cluster.instances.values()}
        for address, order in orders.items():
            leads = orders.get(order.members[0]) if order is not None else None
            if order is None or leads is None or (leads.epoch, leads.group) != (order.epoch, order.group):
                continue
            if leads.members != order.members:
                yield address, leads.members, order.members

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        if isinstance(message, TO_MEMBERS):
            self._is_led(sender, to, message)
        elif isinstance(message, TO_LEADERS):
            order = self.cluster.core(sender).group_order
            if order is None or order.kind is not GroupKind.ELASTIC or order.members[0] != to:
                raise self.fail(f"{sender} follows {order} and answers {to}: {message}")
        if isinstance(message, MeetMembers):
            self._is_asked(sender, to, message)
        if isinstance(message, GroupStep):
            self._is_next(sender, to, message)
            self._have_met(sender, to, message)

    def _is_led(self, leader: Address, member: Address, message: OpenGuest | GrowGuest | GroupStep) -> None:
        order = self.cluster.core(leader).group_order
        if order is None or order.kind is not GroupKind.ELASTIC or order.members[0] != leader:
            raise self.fail(f"{leader} leads nothing by {order} and commands {member}: {message}")
        if message.group != order.group or member not in order.members:
            raise self.fail(f"{leader} commands {member} in group {message.group}, and leads {order}")

    def _is_next(self, leader: Address, member: Address, step: GroupStep) -> None:
        key = leader, member, step.group
        if step.exchange <= self._newest.get(key, 0):
            raise self.fail(f"{leader} sends {member} exchange {step.exchange} after {self._newest[key]}")
        self._newest[key] = step.exchange

    def _is_asked(self, leader: Address, member: Address, asked: MeetMembers) -> None:
        state = _member(_led(self.cluster, leader), member)
        if state is not None:
            self._meetings.setdefault((leader, asked.group), Meetings()).tell(state, asked)

    def _have_met(self, leader: Address, member: Address, step: GroupStep) -> None:
        state = _member(_led(self.cluster, leader), member)
        meetings = self._meetings.get((leader, step.group), Meetings())
        named = {*step.span_member, *step.serve_member}
        if state is not None and not meetings.have_met(state.index, named):
            raise self.fail(f"{leader} has {member} compute with {named}, and of their meetings said {meetings}")

    def before(self, event: Delivery) -> None:
        led = _led(self.cluster, event.to)
        state = _member(led, event.sender)
        if led is None or state is None:
            return
        if getattr(event.message, "group", led.number) == led.number:
            self._meetings.setdefault((event.to, led.number), Meetings()).hear(state, event.message)


class GuestWatcher(InvariantWatcher):
    """I8: guests lie at members of the group that their instance follows, and no longer than their leader knows of
    them; what a leader counts as computed was computed, and lies where it takes it to lie.
    """

    invariant = "I8"
    roles = ("instance",)

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._valid: dict[int, int] = {}
        """Of the receiver's sequences, before the event, by number."""
        self._unknown_since_s: dict[Held, float] = {}

    def before(self, event: Delivery) -> None:
        led = _led(self.cluster, event.to)
        self._valid = {} if led is None else {each.number: each.sequence.valid for each in led.spreads}

    def after(self, event: Delivery) -> None:
        core = self.cluster.core(event.to)
        if not isinstance(core, InstanceCore):
            return
        self._are_of_its_group(core)
        if isinstance(event.message, Gone):
            self._leader_is_there(core, event.sender)
        led = core.led_group
        for spread in led.spreads if led is not None else ():
            self._is_mapped(core, spread)
            if led is not None and spread.is_live and spread.sequence.valid > self._valid.get(spread.number, 0):
                self._is_computed(core, led, spread)
        if led is not None:
            self._waits_for_parts(core, led)

    def _are_of_its_group(self, core: InstanceCore) -> None:
        order = core.group_order
        group = order.group if order is not None and order.kind is GroupKind.ELASTIC else 0
        for guest in core.group_member.steps.guests:
            if group_of(guest.number) != group:
                raise self.fail(f"{core.address} follows {order} and has guest {guest.number}", "I4")

    def _leader_is_there(self, core: InstanceCore, gone: Address) -> None:
        order, count = core.group_order, len(core.group_member.steps.guests)
        if count and order is not None and order.members[0] == gone:
            raise self.fail(f"{core.address} has {count} guests of {gone}, whose stream has ended")

    def _is_mapped(self, core: InstanceCore, spread: SpreadSequence) -> None:
        """Its leader's map has each token up to `issued` once, and what is computed at members that have it as a
        guest.
        """
        if any(each.member not in spread.guests for each in spread.after_hole if spread.is_live):
            raise self.fail(f"{core.address}: {spread.after_hole} of {spread.sequence.name}, and no guest there is")
        at = 0
        for block in spread.blocks:
            if block.start != at or block.stop <= block.start:
                raise self.fail(f"{core.address}: tokens from {at} on of {spread.sequence.name}: {spread.blocks}")
            at = block.stop
            if spread.is_live and block.start < spread.sequence.valid and block.member not in spread.guests:
                raise self.fail(f"{core.address}: {block} of {spread.sequence.name} is valid, and no guest there is")
        if at != spread.sequence.issued:
            issued = spread.sequence.issued
            raise self.fail(f"{core.address}: {at} of {issued} tokens of {spread.sequence.name} lie somewhere")

    def _is_computed(self, core: InstanceCore, led: LedGroup, spread: SpreadSequence) -> None:
        """What has just become valid is bound at its members, but where one has lost the guest a moment ago."""
        since = self._valid.get(spread.number, 0)
        for block in spread.blocks:
            start, stop = max(block.start, since), min(block.stop, spread.sequence.valid)
            address = led.roster.address(block.member)
            member = self.cluster.core(address) if start < stop else None
            if not isinstance(member, InstanceCore):
                continue
            guests = member.group_member.steps.guests
            guest = guests.get(spread.number)
            if guest is not None and not guests.has(guest, start, stop):
                raise self.fail(f"{core.address} counts {start} to {stop} of {spread.sequence.name} at {address}")

    def _waits_for_parts(self, core: InstanceCore, led: LedGroup) -> None:
        """No member computes for a step of which a part will not come."""
        outstanding = led.steps.ledger.outstanding
        if any(each.is_spoilt for each in outstanding) and any(
            each.waiting and not each.is_cancelled for each in outstanding
        ):
            raise self.fail(f"{core.address} lets members wait for what does not come: {outstanding}", "I12")

    def audit(self) -> None:
        now_s = self.cluster.world.now_s
        unknown = dict.fromkeys(self._unknown())
        self._unknown_since_s = {each: self._unknown_since_s.get(each, now_s) for each in unknown}
        for (address, number), since_s in self._unknown_since_s.items():
            if now_s - since_s <= FORGOTTEN_S:
                continue
            order = self.cluster.core(address).group_order
            if not self.faults.was_disturbed(address, *(order.members[:1] if order is not None else ())):
                raise self.fail(f"{address} has guest {number} since {since_s}, and its leader knows nothing of it")
            self.excuse("a disturbed member has a guest that its leader does not know")

    def _unknown(self) -> Iterator[Held]:
        """The guests that the leaders of their members do not count on."""
        for core in self.cluster.instances.values():
            order = core.group_order
            leader = self.cluster.core(order.members[0]) if order is not None else None
            if self.cluster.world.is_paused(core.address):
                continue
            for guest in core.group_member.steps.guests:
                led = leader.led_group if isinstance(leader, InstanceCore) else None
                state = _member(led, core.address)
                spread = led.spreads.by_number(guest.number) if led is not None else None
                if state is None or spread is None or state.index not in spread.guests:
                    yield core.address, guest.number


def _led(cluster: SimulatedCluster, address: Address) -> LedGroup | None:
    core = cluster.core(address) if address.role == "instance" else None
    return core.led_group if isinstance(core, InstanceCore) else None


def _member(led: LedGroup | None, address: Address) -> MemberState | None:
    return led.roster.member_at(address) if led is not None else None
