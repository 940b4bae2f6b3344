"""I2, I3, I4, I5, I9: old attempts, incarnations, epochs, plans and terms have no effect; time asleep is forgiven."""

from typing import Any

from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Accepted, Failed, Poisoned, Refused, Returned, Tokens
from dunlin.messages.engine import StopEngine
from dunlin.messages.fleet import FleetView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import Drain, Evacuate, GroupOrder, Handoff, RemapLayers, Undrain
from dunlin.messages.types import GroupKind
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

ATTEMPTS = (Tokens, Accepted, Refused, Returned, Poisoned, Failed)


class FencingWatcher(InvariantWatcher):
    """I2: a message of an old attempt, incarnation, epoch or plan version changes nothing."""

    invariant = "I2"
    roles = ("dispatcher", "instance")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._stale: list[tuple[Any, tuple[object, ...]]] = []
        self._versions: dict[Address, tuple[int, int]] = {}
        self._views: dict[Address, tuple[Address, int]] = {}

    def before(self, event: Delivery) -> None:
        self._stale = []
        if event.to.role != "dispatcher" or not isinstance(event.message, ATTEMPTS):
            return
        journal = self.cluster.core(event.to).journal
        for number, attempt in _named(event.message):
            request = journal.get(number)
            is_held = request is not None and request.instance is not None
            if is_held and (request.instance != event.sender or request.attempt != attempt):
                self._stale.append((request, _said(request)))

    def after(self, event: Delivery) -> None:
        for request, before in self._stale:
            now = _said(request)
            if now != before:
                raise self.fail(f"{event} is of an old attempt and made {before} of {now}")
        role, core = event.to.role, self.cluster.core(event.to)
        if role == "instance" and isinstance(event.message, GroupOrder) and core is not None:
            before, now = self._versions.get(event.to, (0, 0)), core.plan
            if now < before:
                raise self.fail(f"{event.to} went from plan {before} back to {now} by {event.message}")
            self._versions[event.to] = now
        if role == "dispatcher" and isinstance(event.message, FleetView) and core is not None:
            self._view_taken(event, core.fleet.view_source)

    def audit(self) -> None:
        """Check that a monitor counts one process of each name."""
        for address in self.cluster.of_role("monitor"):
            present = self.cluster.core(address).registry.present()
            names = {(one.role, one.name) for one in present}
            if len(names) < len(present):
                raise self.fail(f"{address} counts a process and its successor: {present}")

    def _view_taken(self, event: Delivery, source: tuple[Address | None, int]) -> None:
        monitor, version = source
        if monitor is None:
            return
        before = self._views.get(event.to)
        self._views[event.to] = (monitor, version)
        if before is None or not self.cluster.world.is_connected(event.to, before[0]):
            return
        is_newer = (monitor.incarnation, version) >= (before[0].incarnation, before[1])
        if not is_newer:
            raise self.fail(f"{event.to} went from view {before} back to {monitor} version {version}")


def _named(message: Any) -> list[tuple[int, int]]:
    """(request, attempt) of each row of the message."""
    if isinstance(message, Tokens):
        return list(zip(message.request, message.attempt, strict=True))
    return [(message.request, message.attempt)]


def _said(request: Any) -> tuple[object, ...]:
    return (request.state, request.attempt, request.instance, len(request.tokens))


COVERAGE_S = 60.0
"""Seconds within which layers come back that an order let go."""


ORDERS = (GroupOrder, Evacuate, Drain, Undrain, RemapLayers, Handoff)
"""What a manager says in its term alone."""


class LeadershipWatcher(InvariantWatcher):
    """I3: one leader per epoch. I9: a manager orders nothing but in the term that etcd gave it, and from the moment on
    in which it hears that the term is over, nothing at all: what it had sent before may arrive at any time later.
    """

    invariant = "I3"
    roles = ("global_manager", "instance")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._terms: dict[Address, int] = {}
        """The term that each manager has been given and not been told the end of."""
        self._orders: dict[tuple[int, int, Address], GroupOrder] = {}

    def before(self, event: Delivery) -> None:
        if event.to.role != "global_manager":
            return
        message = event.message
        if isinstance(message, Elected):
            self._terms[event.to] = message.epoch
        elif isinstance(message, Deposed) and self._terms.get(event.to) == message.epoch:
            del self._terms[event.to]

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        if sender.role != "global_manager" or not isinstance(message, ORDERS):
            return
        if self._terms.get(sender) != message.epoch:
            raise self.fail(f"{sender} has term {self._terms.get(sender)} and orders {to} {message}", "I9")

    def after(self, event: Delivery) -> None:
        if event.to.role == "global_manager":
            self._manager(event)
        elif event.to.role == "instance" and isinstance(event.message, GroupOrder):
            self._ordered(event, event.message)

    def _manager(self, event: Delivery) -> None:
        core = self.cluster.core(event.to)
        term = core.term if core is not None else None
        if term is not None and isinstance(event.message, Deposed) and event.message.epoch == term.epoch:
            raise self.fail(f"{event.to} heard that epoch {term.epoch} is over, and leads on")
        if term is not None:
            elected = self.cluster.etcd.terms.get(term.epoch)
            if elected != event.to:
                raise self.fail(f"{event.to} leads epoch {term.epoch}, which is {elected}'s")

    def _ordered(self, event: Delivery, message: GroupOrder) -> None:
        key = (message.epoch, message.plan_version, event.to)
        first = self._orders.setdefault(key, message)
        if _plan_of(first) != _plan_of(message):
            raise self.fail(f"{key} means {first} and {message}", "I4")


def _plan_of(order: GroupOrder) -> tuple[object, ...]:
    return (order.group, order.kind, order.part, order.members, list(order.layers))


class GroupWatcher(InvariantWatcher):
    """I4: the members of a group agree on it. I5: together they hold every layer, or do again within `COVERAGE_S`
    after an order to hold fewer, and the group ends within that after a member is gone.
    """

    invariant = "I4"

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._lacking_since_s: dict[Address, float] = {}
        self._incomplete_since_s: dict[tuple[int, int], float] = {}
        self._members_of: dict[int, dict[Address, None]] = {}
        """All that were in each elastic group, by its number; its leader is the first."""

    def audit(self) -> None:
        followed = {
            core.address: core.group_order for core in self.cluster.instances.values() if core.group_order is not None
        }
        leads: dict[tuple[int, int, int], tuple[Address, ...]] = {}
        for address, order in followed.items():
            if address not in order.members:
                raise self.fail(f"{address} is no member of its own {order}")
            # Members of an elastic group come and go: orders that differ are on their way.
            version = order.plan_version if order.kind is GroupKind.ELASTIC else 0
            key = (order.epoch, version, order.group)
            members = leads.setdefault(key, order.members)
            if members != order.members:
                raise self.fail(f"group {key} is {members} and {order.members}")
            self._is_led_by_the_same(order)
            self._agree(address, order, followed)
            self._cover(order, followed)
        for core in self.cluster.instances.values():
            is_planned = core.group_order is not None or not len(core.sequences)
            if not is_planned:
                raise self.fail(f"{core.address} runs {core.sequences!r} and follows no order")

    def _is_led_by_the_same(self, order: GroupOrder) -> None:
        """Check that the number of an elastic group names no other, in any term: what its members say carries it. Where
        all of them are gone, no process can say it any more, nor tell a new manager of it.
        """
        if order.kind is not GroupKind.ELASTIC:
            return
        members = self._members_of.setdefault(order.group, dict.fromkeys(order.members))
        leader = next(iter(members))
        if leader != order.members[0]:
            if any(self.cluster.world.is_up(member) for member in members):
                raise self.fail(f"group {order.group} of {order} was led by {leader}")
            self.excuse("a group has the number of one whose members are all gone")
            members.clear()
        members.update(dict.fromkeys(order.members))

    def _agree(self, address: Address, order: GroupOrder, followed: dict[Address, GroupOrder]) -> None:
        for member in order.members:
            theirs = followed.get(member)
            if theirs is not None and (theirs.epoch, theirs.plan_version) == (order.epoch, order.plan_version):
                same = (theirs.kind, theirs.members, theirs.group) == (order.kind, order.members, order.group)
                if not same:
                    raise self.fail(f"{address} follows {order} and its fellow {theirs}")

    def _cover(self, order: GroupOrder, followed: dict[Address, GroupOrder]) -> None:
        gone = [one for one in order.members if one not in followed or one not in self.cluster.engine_supervisors]
        if gone:
            return self._is_to_end(order, gone)
        self._incomplete_since_s.pop((order.epoch, order.group), None)
        held = {member: self._held(member, followed[member]) for member in order.members}
        every = frozenset(range(self.cluster.engine_supervisors[order.members[0]].layers.all))
        together = frozenset[int]().union(*held.values())
        # Members of a pipeline have a part each; a member of any other group computes all layers of its rows.
        parts = {"all members": together} if order.kind is GroupKind.PIPELINE else held
        if every <= min(parts.values(), key=len):
            self._lacking_since_s.pop(order.members[0], None)
        for who, layers in parts.items():
            if layers == every:
                continue
            if order.kind is not GroupKind.LOCAL or not self._is_ordered_to_lack(order.members[0]):
                raise self.fail(f"layers {sorted(layers)} of {len(every)} are all that {who} of {order} holds", "I5")
            self.excuse("layers are missing by order and nothing is computed", "I5")

    def _is_to_end(self, order: GroupOrder, gone: list[Address]) -> None:
        """Check that a group some of whose members are gone, with their layers, ends in time."""
        now_s = self.cluster.world.now_s
        since_s = self._incomplete_since_s.setdefault((order.epoch, order.group), now_s)
        if now_s - since_s <= COVERAGE_S:
            return
        if not self.faults.was_disturbed(*order.members):
            raise self.fail(f"{order} goes on without {gone}, who are gone since {since_s}", "I5")
        self.excuse("a group without members that are gone is disturbed", "I5")

    def _is_ordered_to_lack(self, member: Address) -> bool:
        """Whether an instance knows that its layers go or are gone, computes nothing meanwhile, and has not for too
        long.

        It knows when it orders them away from its engine: the engine has dropped them a message before it hears so.
        """
        core, now_s = self.cluster.instances[member.name], self.cluster.world.now_s
        since_s = self._lacking_since_s.setdefault(member, now_s)
        in_time = now_s - since_s < COVERAGE_S or self.faults.was_disturbed(member)
        computes = core.layer_changes.may_compute or core.steps.outstanding
        return in_time and not computes

    def _held(self, member: Address, order: GroupOrder) -> frozenset[int]:
        """The layers that a member has of those that its order names (all, if it names none)."""
        held = frozenset(self.cluster.engine_supervisors[member].layers.held)
        return held & frozenset(order.layers) if len(order.layers) else held


class SuspicionWatcher(InvariantWatcher):
    """I9: a process that slept suspects no other for the time that it slept."""

    invariant = "I9"
    roles = ("dispatcher", "engine", "global_manager")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._suspected: set[tuple[Address, Address]] = set()

    def before(self, event: Delivery) -> None:
        if isinstance(event.message, StopEngine) and event.to.role == "engine":
            self._stopped(event)
        elif isinstance(event.message, FleetView) and not self.faults.was_disturbed(event.to):
            for member in event.message.members:
                # Per receiver: one may still receive a suspicion of whose end another has been told.
                key = (event.to, member.address)
                if member.suspect and key not in self._suspected:
                    self._suspect(event, member.address)
                (self._suspected.add if member.suspect else self._suspected.discard)(key)

    def _stopped(self, event: Delivery) -> None:
        supervisor = self.cluster.engine_supervisors.get(event.sender)
        why = getattr(event.message, "why", None)
        is_fair = (
            supervisor is None or supervisor.engine.is_stuck or (why is not None and why.policy == "engine contract")
        )
        if not is_fair:
            raise self.fail(f"{event.sender} ends an engine that works: {why}")

    def _suspect(self, event: Delivery, instance: Address) -> None:
        supervisor = self.cluster.engine_supervisors.get(instance)
        if supervisor is None or supervisor.engine.is_stuck:
            return
        if not self.faults.was_disturbed(instance):
            raise self.fail(f"{event.sender} suspects {instance}, with which nothing is wrong")
        self.excuse("a disturbed instance is suspected")
