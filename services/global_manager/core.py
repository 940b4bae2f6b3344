"""Decides which instances form which group and what moves between them, while this process leads. No token waits.

Knows the fleet from the monitor's views alone; of requests those that are too long for one instance, and no token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.cores.handlers import handlers_of, handles
from dunlin.cores.reporting import Heartbeat
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.fleet import FleetView, ManagerReport, MemberView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import DrainDone, DrainOutcome, DrainReply, DrainRequest, EvacuateDone
from dunlin.policies.loongserve.inputs import GroupTimes
from dunlin.policies.rebalance import REBALANCE_POLICIES
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.fleet_mirror import FleetMirror
from services.global_manager.handoff_assignments import HandoffAssignments
from services.global_manager.long_routes import LongRequestRoutes
from services.global_manager.move_orders import MoveOrders
from services.global_manager.plan_term import PlanTerm
from services.global_manager.plan_throttle import PlanThrottle
from services.global_manager.planner import GroupPlanner, ManagerTotals
from services.global_manager.stream_leases import LeaseDue, StreamLeases


@dataclass(frozen=True, slots=True)
class MovesDue:
    """Time to look for moves between instances, unless a newer timer runs."""

    counter: int


class GlobalManagerCore:
    """One candidate for the lead. Without a term it only listens. `times`: what is known of the times of prefills."""

    def __init__(self, address: Address, config: GlobalManagerConfig, times: GroupTimes | None = None) -> None:
        self.address = address
        self.fleet = FleetMirror()
        self.totals = ManagerTotals()
        self.move_orders: MoveOrders | None = None
        self.handoff_assignments: HandoffAssignments | None = None
        self._rebalance = config.rebalance
        self._rooms_interval_s = config.kv_handoff.rooms_interval_s
        self._instances: dict[Address, None] = {}
        self._heartbeat = Heartbeat(self.report, config.reports.interval_s)
        self._leases = StreamLeases(config.groups.lease_s)
        self._planner = GroupPlanner(
            config, self.fleet, self._instances, self._heartbeat, self.totals, self._leases, times
        )
        self._long = LongRequestRoutes(self._planner, config.long_requests, self.totals)
        self._moves_throttle = PlanThrottle(config.plan_pace.per_instance_s, config.plan_pace.small_fleet)
        self._is_reshaped = False
        self._last_epoch = 0
        self._moves_timers = 0
        self._handlers = handlers_of(self, self._heartbeat, self._planner, self._long)

    @property
    def term(self) -> PlanTerm | None:
        """The plan of the term that this process leads; None: it does not."""
        return self._planner.term

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        return handler(now_s, sender, message) if handler is not None else []

    def report(self) -> ManagerReport:
        """The report of this manager: its term and what waits for it, if it leads."""
        term, long = self._planner.term, self._planner.long
        if term is None or long is None:
            return ManagerReport()
        return ManagerReport(
            term.epoch,
            term.plan_version,
            long_waiting=long.requests.unanswered_count,
            long_placed=long.requests.answered_count,
            elastic_groups=len(long.groups.groups),
            long_placed_total=long.placed_total,
            long_refused_total=long.refused_total,
        )

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        if sender.role == "dispatcher":
            return self._long.on_dispatcher_joined(sender)
        if sender.role != "instance":
            return []
        self._instances[sender] = None
        self._leases.on_joined(sender)
        again = self._planner.order_again(sender)
        moves = self.move_orders.on_instance_joined(sender) if self.move_orders is not None else []
        rooms = self.handoff_assignments.on_instance_joined(sender) if self.handoff_assignments is not None else []
        member = self.fleet.members.get(sender)
        # Only ready instances are grouped: the view that reports this one ready starts a plan.
        plan = self._planner.replan_soon(now_s) if member is not None and member.ready else []
        return again + moves + rooms + plan

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        if sender.role == "dispatcher":
            return self._long.on_dispatcher_gone(now_s, sender)
        if sender in self._instances:
            del self._instances[sender]
            self._is_reshaped = True
            return [self._leases.on_gone(sender)]
        return []

    @handles
    def _on_lease_due(self, now_s: float, sender: Address, message: LeaseDue) -> list[Effect]:
        if not self._instances:  # then it is this process that is cut off
            return [self._leases.look_again(message)]
        return self._planner.replan_soon(now_s) if self._leases.on_due(message) else []

    @handles
    def _on_view(self, now_s: float, sender: Address, message: FleetView) -> list[Effect]:
        if not self.fleet.apply(sender, message):
            self.totals.stale += 1
            return []
        if self.move_orders is not None:
            self.move_orders.forget_unknown(self.fleet.members)
        self._leases.forget_unknown(self.fleet.members)
        is_new, self._is_reshaped = self.fleet.is_reshaped or self._is_reshaped, False
        plan = self._planner.replan_soon(now_s) if is_new else self._long.look_at_view(now_s)
        return plan + ([] if self._can_wait_for_timer(now_s) else self._order_moves(now_s))

    @handles
    def _on_elected(self, now_s: float, sender: Address, message: Elected) -> list[Effect]:
        if message.epoch <= self._last_epoch:
            self.totals.stale += 1
            return []
        self._last_epoch = message.epoch
        self._planner.begin(PlanTerm(message.epoch))
        self.move_orders = MoveOrders(message.epoch, REBALANCE_POLICIES[self._rebalance.policy], self._rebalance)
        self.handoff_assignments = HandoffAssignments(message.epoch, self._rooms_interval_s)
        self._moves_timers += 1
        looks = After(self._rebalance.interval_s, MovesDue(self._moves_timers))
        plan = self._planner.replan(now_s) or self._heartbeat.sends()
        return [*plan, *self._long.say_who_leads(), looks]

    @handles
    def _on_deposed(self, now_s: float, sender: Address, message: Deposed) -> list[Effect]:
        if self.term is None or message.epoch != self.term.epoch:
            self.totals.stale += 1
            return []
        self._planner.end()
        self.move_orders = self.handoff_assignments = None
        return [*self._heartbeat.sends(), *self._long.say_who_leads()]

    # --- moves ---

    @handles
    def _on_moves_due(self, now_s: float, sender: Address, message: MovesDue) -> list[Effect]:
        if message.counter != self._moves_timers or self.move_orders is None:
            return []
        again = [effect for effect in self.move_orders.resend_drains() if effect.to in self._instances]
        moves = [*again, *self._order_moves(now_s), *self._long.look(now_s)]
        return [*moves, After(self._rebalance.interval_s, message)]

    @handles
    def _on_evacuate_done(self, now_s: float, sender: Address, message: EvacuateDone) -> list[Effect]:
        taken = self.move_orders is not None and self.move_orders.on_evacuate_done(now_s, sender, message)
        self.totals.stale += not taken
        return []

    @handles
    def _on_drain_done(self, now_s: float, sender: Address, message: DrainDone) -> list[Effect]:
        taken = self.move_orders is not None and self.move_orders.on_drain_done(sender, message)
        self.totals.stale += not taken
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
