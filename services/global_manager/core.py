"""Decides which instances form which group and what moves between them, while this process leads. No token waits.

Knows the fleet from the monitor's views alone; not a request, not a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.cores.handlers import handlers_of, handles
from dunlin.cores.reporting import Heartbeat
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.fleet import FleetView, ManagerReport, MemberView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import (
    DrainDone,
    DrainOutcome,
    DrainReply,
    DrainRequest,
    EvacuateDone,
    GroupOrderDone,
    GroupOrderRefused,
)
from dunlin.policies.group import GROUP_POLICIES, GroupCandidate, GroupConstraints
from dunlin.policies.rebalance import REBALANCE_POLICIES
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.fleet_mirror import FleetMirror
from services.global_manager.handoff_assignments import HandoffAssignments
from services.global_manager.move_orders import MoveOrders
from services.global_manager.plan_term import OrderStatus, PlanTerm
from services.global_manager.plan_throttle import PlanDue, PlanThrottle


@dataclass(frozen=True, slots=True)
class RetryDue:
    """Time to give open orders again, unless a newer timer runs."""

    counter: int


@dataclass(frozen=True, slots=True)
class MovesDue:
    """Time to look for moves between instances, unless a newer timer runs."""

    counter: int


class GlobalManagerCore:
    """One candidate for the lead. Without a term it only listens.

    `stale_total` counts answers about older orders or terms, and views that do not follow the one held.
    """

    def __init__(self, address: Address, config: GlobalManagerConfig) -> None:
        self.address = address
        self.fleet = FleetMirror()
        self.term: PlanTerm | None = None
        self.move_orders: MoveOrders | None = None
        self.handoff_assignments: HandoffAssignments | None = None
        self.stale_total = 0
        self.refused_total = 0
        self._groups = config.groups
        self._rebalance = config.rebalance
        self._rooms_interval_s = config.kv_handoff.rooms_interval_s
        self._policy = GROUP_POLICIES[config.groups.policy]
        self._constraints = GroupConstraints(config.groups.prefill_share)
        self._instances: dict[Address, None] = {}
        self._heartbeat = Heartbeat(self.report, config.reports.interval_s)
        self._plan_throttle = PlanThrottle(config.plan_pace.per_instance_s, config.plan_pace.small_fleet)
        self._moves_throttle = PlanThrottle(config.plan_pace.per_instance_s, config.plan_pace.small_fleet)
        self._is_reshaped = False
        self._last_epoch = 0
        self._retries = 0
        self._retrying = False
        self._moves_timers = 0
        self._handlers = handlers_of(self, self._heartbeat)

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        return handler(now_s, sender, message) if handler is not None else []

    def report(self) -> ManagerReport:
        """The report of this manager: its term, if it leads."""
        return ManagerReport(self.term.epoch, self.term.plan_version) if self.term is not None else ManagerReport()

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        if sender.role != "instance":
            return []
        self._instances[sender] = None
        order = self.term.order_of(sender) if self.term is not None else None
        again: list[Effect] = [Send(sender, order)] if order is not None else []
        moves = self.move_orders.on_instance_joined(sender) if self.move_orders is not None else []
        rooms = self.handoff_assignments.on_instance_joined(sender) if self.handoff_assignments is not None else []
        member = self.fleet.members.get(sender)
        # Only ready instances are grouped: the view that reports this one ready starts a plan.
        return again + moves + rooms + (self._replan_soon(now_s) if member is not None and member.ready else [])

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        if sender in self._instances:
            del self._instances[sender]
            self._is_reshaped = True
        return []

    @handles
    def _on_view(self, now_s: float, sender: Address, message: FleetView) -> list[Effect]:
        if not self.fleet.apply(sender, message):
            self.stale_total += 1
            return []
        if self.move_orders is not None:
            self.move_orders.forget_unknown(self.fleet.members)
        is_new, self._is_reshaped = self.fleet.is_reshaped or self._is_reshaped, False
        plan = self._replan_soon(now_s) if is_new else []
        return plan + ([] if self._can_wait_for_timer(now_s) else self._order_moves(now_s))

    @handles
    def _on_elected(self, now_s: float, sender: Address, message: Elected) -> list[Effect]:
        if message.epoch <= self._last_epoch:
            self.stale_total += 1
            return []
        self._last_epoch = message.epoch
        self.term = PlanTerm(message.epoch)
        self.move_orders = MoveOrders(message.epoch, REBALANCE_POLICIES[self._rebalance.policy], self._rebalance)
        self.handoff_assignments = HandoffAssignments(message.epoch, self._rooms_interval_s)
        self._moves_timers += 1
        looks = After(self._rebalance.interval_s, MovesDue(self._moves_timers))
        return [*(self._replan(now_s) or self._heartbeat.sends()), looks]

    @handles
    def _on_deposed(self, now_s: float, sender: Address, message: Deposed) -> list[Effect]:
        if self.term is None or message.epoch != self.term.epoch:
            self.stale_total += 1
            return []
        self.term = self.move_orders = self.handoff_assignments = None
        return self._heartbeat.sends()

    @handles
    def _on_done(self, now_s: float, sender: Address, message: GroupOrderDone) -> list[Effect]:
        self._record_answer(sender, message.epoch, message.plan_version, OrderStatus.DONE)
        return []

    @handles
    def _on_refused(self, now_s: float, sender: Address, message: GroupOrderRefused) -> list[Effect]:
        if not self._record_answer(sender, message.epoch, message.plan_version, OrderStatus.REFUSED):
            return []
        self.refused_total += 1
        return self._retry_later()

    @handles
    def _on_retry_due(self, now_s: float, sender: Address, message: RetryDue) -> list[Effect]:
        if message.counter != self._retries:
            return []
        self._retrying = False
        if self.term is None:
            return []
        again = self.term.open_orders()
        effects: list[Effect] = [Send(member, order) for member, order in again.items() if member in self._instances]
        return effects + self._retry_later()

    # --- moves ---

    @handles
    def _on_moves_due(self, now_s: float, sender: Address, message: MovesDue) -> list[Effect]:
        if message.counter != self._moves_timers or self.move_orders is None:
            return []
        again = [effect for effect in self.move_orders.resend_drains() if effect.to in self._instances]
        return [*again, *self._order_moves(now_s), After(self._rebalance.interval_s, message)]

    @handles
    def _on_evacuate_done(self, now_s: float, sender: Address, message: EvacuateDone) -> list[Effect]:
        taken = self.move_orders is not None and self.move_orders.on_evacuate_done(now_s, sender, message)
        self.stale_total += not taken
        return []

    @handles
    def _on_drain_done(self, now_s: float, sender: Address, message: DrainDone) -> list[Effect]:
        taken = self.move_orders is not None and self.move_orders.on_drain_done(sender, message)
        self.stale_total += not taken
        return []

    @handles
    def _on_drain_request(self, now_s: float, sender: Address, message: DrainRequest) -> list[Effect]:
        if self.move_orders is None:
            return [Send(sender, DrainReply(DrainOutcome.NOT_LEADER, f"{self.address.name} does not lead"))]
        reply, effects = self.move_orders.request_drain(message, self._reachable())
        return [Send(sender, reply), *effects]

    def _order_moves(self, now_s: float) -> list[Effect]:
        if self.move_orders is None or self.handoff_assignments is None:
            return []
        is_still = self._rebalance.policy == "none" and not self.fleet.has_moves
        if is_still and not self.move_orders.has_open_drains and not self.handoff_assignments.has_assignments:
            return []
        self._moves_throttle.plan_made(now_s)
        members = self._reachable()
        return [*self.handoff_assignments.assign(now_s, members), *self.move_orders.order_moves(now_s, members)]

    def _can_wait_for_timer(self, now_s: float) -> bool:
        """Look for moves now; in a large fleet the next timer is soon enough, unless an operator waits."""
        is_asked = self.move_orders is not None and self.move_orders.has_open_drains
        return not is_asked and self._moves_throttle.is_too_soon(now_s, len(self.fleet.members))

    def _reachable(self) -> list[MemberView]:
        return [member for member in self.fleet.members.values() if member.address in self._instances]

    def _record_answer(self, sender: Address, epoch: int, plan_version: int, answer: OrderStatus) -> bool:
        taken = self.term is not None and self.term.record_answer(sender, epoch, plan_version, answer)
        self.stale_total += not taken
        return taken

    def _replan_soon(self, now_s: float) -> list[Effect]:
        """At once, or when the last plan of a large fleet is old enough."""
        if self.term is None:
            return []
        timer = self._plan_throttle.delay(now_s, len(self.fleet.members))
        return self._replan(now_s) if timer is None else [*timer]

    @handles
    def _on_plan_due(self, now_s: float, sender: Address, message: PlanDue) -> list[Effect]:
        return self._replan(now_s) if self._plan_throttle.is_due(message) else []

    def _replan(self, now_s: float) -> list[Effect]:
        """Send new orders to instances whose place in the plan changed. One that is not ready keeps its order."""
        if self.term is None:
            return []
        self._plan_throttle.plan_made(now_s)
        orders = self.term.update_groups(self._policy(self._candidates(self.term), self._constraints))
        if not orders:
            return []
        effects: list[Effect] = [Send(member, order) for member, order in orders.items()]
        return effects + self._heartbeat.sends() + self._retry_later()

    def _candidates(self, term: PlanTerm) -> list[GroupCandidate]:
        """The instances that may be grouped: in the newest view, and in the plan already or ready with a stream."""
        candidates = []
        for member in self.fleet.members.values():
            order = term.order_of(member.address)
            is_there = member.ready and member.address in self._instances
            if order is None and not is_there:
                continue
            place = order if order is not None else member
            serves = is_there and not member.suspect and not member.draining
            requests = member.running + member.waiting
            candidates.append(
                GroupCandidate(member.address, member.capacity_slots, place.group, place.part, serves, requests)
            )
        return candidates

    def _retry_later(self) -> list[Effect]:
        if self._retrying or self.term is None or not self.term.has_open_orders():
            return []
        self._retrying = True
        self._retries += 1
        return [After(self._groups.order_retry_s, RetryDue(self._retries))]
