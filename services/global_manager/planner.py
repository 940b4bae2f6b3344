"""Makes the plan while this process leads: which instance is in which group, the orders that say so, and their answers.

Owns the term. Looks at the fleet as the views show it, and at the instances that have a stream to here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dunlin.cores.handlers import handles
from dunlin.cores.reporting import Heartbeat
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.fleet import MemberView
from dunlin.messages.plan import GroupOrder, GroupOrderDone, GroupOrderRefused
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.groups.group import GROUP_POLICIES, GROUPS_OF_SEVERAL
from dunlin.policies.groups.group_plan import GroupCandidate, GroupConstraints
from dunlin.policies.loongserve.inputs import GroupTimes
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.fleet_mirror import FleetMirror
from services.global_manager.long_placement import LongPlacement
from services.global_manager.plan_term import OrderStatus, PlanTerm
from services.global_manager.plan_throttle import PlanDue, PlanThrottle
from services.global_manager.stream_leases import StreamLeases


@dataclass(frozen=True, slots=True)
class RetryDue:
    """Time to give open orders again, unless a newer timer runs."""

    counter: int


@dataclass(slots=True)
class ManagerTotals:
    """Counters that only grow. `stale` counts answers about older orders or terms, and views that do not follow the one
    held; `refused` orders were refused.
    """

    stale: int = 0
    refused: int = 0


class GroupPlanner:
    """Orders instances into groups. `term` and `long` are those of the term that this process leads, None without."""

    def __init__(
        self,
        config: GlobalManagerConfig,
        fleet: FleetMirror,
        instances: Mapping[Address, None],
        heartbeat: Heartbeat,
        totals: ManagerTotals,
        leases: StreamLeases,
        times: GroupTimes | None = None,
    ) -> None:
        self.term: PlanTerm | None = None
        self.long: LongPlacement | None = None
        self._config = config
        self._fleet = fleet
        self._instances = instances
        self._heartbeat = heartbeat
        self._totals = totals
        self._leases = leases
        self._times = times
        self._policy = GROUP_POLICIES[config.groups.policy]
        self._throttle = PlanThrottle(config.plan_pace.per_instance_s, config.plan_pace.small_fleet)
        self._retries = 0
        self._retrying = False

    def begin(self, term: PlanTerm) -> None:
        """This process leads from now on."""
        self.term = term
        self.long = LongPlacement(
            self._config, term.epoch, self._config.groups.policy in GROUPS_OF_SEVERAL, self._times
        )

    def end(self) -> None:
        """It leads no more: nothing of the term is known any more."""
        self.term = self.long = None

    def order_again(self, instance: Address) -> list[Effect]:
        """Repeat the order of an instance whose stream opened anew."""
        order = self.term.order_of(instance) if self.term is not None else None
        return [Send(instance, order)] if order is not None else []

    def replan_soon(self, now_s: float) -> list[Effect]:
        """At once, or when the last plan of a large fleet is old enough."""
        if self.term is None:
            return []
        timer = self._throttle.delay(now_s, len(self._fleet.members))
        return self.replan(now_s) if timer is None else [*timer]

    def replan(self, now_s: float) -> list[Effect]:
        """Send new orders to instances whose place in the plan changed. One that is not ready keeps its order."""
        if self.term is None or self.long is None:
            return []
        self._throttle.plan_made(now_s)
        self.long.groups.see_numbers(member.group for member in self._fleet.members.values())
        candidates = self.long.arrange(now_s, self.candidates(self.term))
        groups_config = self._config.groups
        constraints = GroupConstraints(
            groups_config.prefill_share, self.long.groups.next_group, groups_config.prefill_names
        )
        groups = self._policy(candidates, constraints)
        self.long.groups.note_numbers(group.number for group in groups)
        orders = self.term.update_groups(groups)
        placed = self.long.answer(self.term)
        return [*placed, *(self.send(orders) if orders else [])]

    def send(self, orders: Mapping[Address, GroupOrder]) -> list[Effect]:
        """Give these orders, and report that there are new ones."""
        effects: list[Effect] = [Send(member, order) for member, order in orders.items()]
        return effects + self._heartbeat.sends() + self._retry_later()

    def candidates(self, term: PlanTerm) -> list[GroupCandidate]:
        """The instances that may be grouped: in the newest view, and in the plan already or ready with a stream."""
        candidates = []
        for member in self._fleet.members.values():
            order = term.order_of(member.address)
            has_stream = member.address in self._instances
            if order is not None or (member.ready and has_stream):
                candidate = _candidate(member, order, has_stream, not self._leases.is_over(member.address))
                is_namesake = order is None and self._is_in_namesake(member, term)
                candidates.append(_alone(candidate) if is_namesake else candidate)
        return candidates

    def _is_in_namesake(self, member: MemberView, term: PlanTerm) -> bool:
        """Whether its group is another one with a number that this term has given since, for no view had shown it: what
        runs there can only run anew.
        """
        return self.long is not None and member.epoch != term.epoch and member.group in self.long.groups.made

    @handles
    def on_plan_due(self, now_s: float, sender: Address, message: PlanDue) -> list[Effect]:
        """The last plan of a large fleet is old enough."""
        return self.replan(now_s) if self._throttle.is_due(message) else []

    @handles
    def on_done(self, now_s: float, sender: Address, message: GroupOrderDone) -> list[Effect]:
        """An instance follows its order: perhaps the last one of a group that a long request waits for."""
        taken = self._record_answer(sender, message.epoch, message.plan_version, OrderStatus.DONE)
        if not taken or self.term is None or self.long is None:
            return []
        return self.long.answer(self.term)

    @handles
    def on_refused(self, now_s: float, sender: Address, message: GroupOrderRefused) -> list[Effect]:
        """An instance does not follow its order: give it again later, or make another group."""
        order = self.term.order_of(sender) if self.term is not None else None
        if not self._record_answer(sender, message.epoch, message.plan_version, OrderStatus.REFUSED):
            return []
        self._totals.refused += 1
        if order is not None and order.kind is GroupKind.ELASTIC and self.long is not None:
            self.long.groups.on_refused(now_s, sender)
            return self.replan(now_s)
        return self._retry_later()

    @handles
    def on_retry_due(self, now_s: float, sender: Address, message: RetryDue) -> list[Effect]:
        """Give the orders that are not done again."""
        if message.counter != self._retries:
            return []
        self._retrying = False
        if self.term is None:
            return []
        again = self.term.open_orders()
        effects: list[Effect] = [Send(member, order) for member, order in again.items() if member in self._instances]
        return effects + self._retry_later()

    def _record_answer(self, sender: Address, epoch: int, plan_version: int, answer: OrderStatus) -> bool:
        taken = self.term is not None and self.term.record_answer(sender, epoch, plan_version, answer)
        self._totals.stale += not taken
        return taken

    def _retry_later(self) -> list[Effect]:
        if self._retrying or self.term is None or not self.term.has_open_orders():
            return []
        self._retrying = True
        self._retries += 1
        return [After(self._config.groups.order_retry_s, RetryDue(self._retries))]


def _alone(candidate: GroupCandidate) -> GroupCandidate:
    return replace(candidate, group=0, role=GroupRole.LOCAL, kind=GroupKind.LOCAL)


def _candidate(member: MemberView, order: GroupOrder | None, has_stream: bool, has_lease: bool) -> GroupCandidate:
    """The instance as policies see it: in the place that it was ordered to in this term, or is in by its own report."""
    place = order if order is not None else member
    is_alive = member.ready and not member.suspect and has_lease
    return GroupCandidate(
        member.address,
        member.capacity_slots,
        place.group,
        place.part,
        serves=is_alive and has_stream and not member.draining,
        requests=member.running + member.waiting,
        kind=place.kind,
        alive=is_alive,
        leaves=member.draining,
        free_slots=max(0, member.free_slots - member.waiting_tokens),
        guest_slots=member.guest_slots,
        max_positions=member.max_positions,
        node=member.node,
        weights=member.weights_digest,
    )
