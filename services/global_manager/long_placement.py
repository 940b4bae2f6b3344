"""Answers the dispatchers that ask where a long request goes, in one term: placed once its group is formed, or refused.

Nothing is promised twice: what was placed counts against its group until its dispatcher withdraws it. Knows no stream;
the groups are `ElasticGroups`' to arrange.
"""

from collections.abc import Sequence

from dunlin.cores.recent_peak import RecentPeak
from dunlin.effects import Address, Effect, Send
from dunlin.messages.placement import LongPlaced, LongRefusal, LongRefused, PlaceLong, WithdrawLong
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.messages.types import Figure, RejectedOption, Why
from dunlin.policies.groups.group_plan import GroupCandidate
from dunlin.policies.loongserve.inputs import GroupTimes
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.elastic_groups import ElasticGroups
from services.global_manager.long_requests import LongAsk, LongRequests
from services.global_manager.plan_term import PlanTerm


class LongPlacement:
    """One term's long requests and elastic groups. `forms_groups`: the policy makes groups of several instances.

    `placed_total` and `refused_total` count answers.
    """

    def __init__(
        self, config: GlobalManagerConfig, epoch: int, forms_groups: bool, times: GroupTimes | None = None
    ) -> None:
        self.requests = LongRequests(config.long_requests.max_waiting)
        self.groups = ElasticGroups(config, epoch, self.requests, times)
        self.placed_total = 0
        self.refused_total = 0
        self._config = config.long_requests
        self._forms_groups = forms_groups
        self._limit = RecentPeak(config.long_requests.remembered_s, 0)

    # --- dispatchers ---

    def on_place(self, now_s: float, sender: Address, message: PlaceLong) -> list[Effect]:
        """A dispatcher asks: what can be said at once. Asked for the same attempt again, the answer is the same."""
        known = self.requests.find(sender, message.request)
        if known is not None and message.attempt <= known.message.attempt:
            if message.attempt == known.message.attempt:
                known.message = message  # a batch request that rose comes as an interactive one
            return [Send(sender, known.answer)] if known.answer is not None else []
        group = known.group if known is not None else 0
        refusal = self._refusal(now_s, sender, message)
        if refusal is not None and known is not None:
            self.requests.forget(known)
        if group:
            self.groups.on_request_over(group)
        return [] if refusal is None else [self._refuse(now_s, sender, message, refusal)]

    def _refusal(self, now_s: float, sender: Address, message: PlaceLong) -> LongRefusal | None:
        """Queue the request, in the place that it has if it was asked for before; or why it is not queued."""
        if not self._forms_groups or self._is_too_long(now_s, message):
            return LongRefusal.TOO_LONG
        return None if self.requests.add(now_s, sender, message) else LongRefusal.QUEUE_FULL

    def on_withdraw(self, sender: Address, message: WithdrawLong) -> None:
        """The request needs no group any more."""
        known = self.requests.find(sender, message.request)
        if known is not None and message.attempt >= known.message.attempt:
            self._over(known)

    def on_dispatcher_gone(self, dispatcher: Address) -> None:
        """Its requests are forgotten: another dispatcher, or itself, asks anew."""
        for ask in self.requests.of_dispatcher(dispatcher):
            self._over(ask)

    # --- leaders ---

    def on_wish(self, now_s: float, term: PlanTerm, sender: Address, message: AskMembers | ReturnMembers) -> bool:
        """A leader lacks slots, or gives members back; False: it does not lead that group by its newest order."""
        if not _follows(term, sender, message):
            return False
        if isinstance(message, AskMembers):
            self.groups.on_ask(message)
        elif message.cannot_join:
            self.groups.on_cannot_join(now_s, message)
        else:
            self.groups.on_return(message)
        return True

    # --- plans ---

    def arrange(self, now_s: float, candidates: Sequence[GroupCandidate]) -> list[GroupCandidate]:
        """The candidates in the elastic groups that they are to be in."""
        self._limit.note(now_s, self.groups.longest(candidates) if self._forms_groups else _largest(candidates))
        return self.groups.arrange(now_s, candidates) if self._forms_groups else list(candidates)

    def answer(self, term: PlanTerm) -> list[Effect]:
        """Tell the dispatchers whose requests have a group that all members have joined."""
        effects: list[Effect] = []
        for ask in self.requests.unanswered():
            if ask.group and term.is_formed(ask.group):
                leader = self.groups.groups[ask.group][0]
                request, attempt = ask.message.request, ask.message.attempt
                answer = LongPlaced(request, attempt, leader, ask.group, ask.why)
                self.requests.answer(ask, answer)
                self.groups.on_placed(ask.group)
                self.placed_total += 1
                effects.append(Send(ask.dispatcher, answer))
        return effects

    def refuse_overdue(self, now_s: float) -> list[Effect]:
        """Refuse those that have waited for too long, or that no group can hold as the fleet is and was lately."""
        effects: list[Effect] = []
        for ask in self.requests.unanswered():
            is_late = now_s - ask.arrived_s >= self._config.max_wait_s
            if not ask.group and self._is_too_long(now_s, ask.message):
                reason = LongRefusal.TOO_LONG
            elif is_late:
                reason = LongRefusal.NO_ROOM
            else:
                continue
            self._over(ask)
            effects.append(self._refuse(now_s, ask.dispatcher, ask.message, reason, now_s - ask.arrived_s))
        return effects

    def _over(self, ask: LongAsk) -> None:
        group = ask.group
        self.requests.forget(ask)
        self.groups.on_request_over(group)

    def _is_too_long(self, now_s: float, message: PlaceLong) -> bool:
        return self._limit.is_settled(now_s) and message.longest > self._limit.peak(now_s)

    def _refuse(
        self, now_s: float, to: Address, message: PlaceLong, reason: LongRefusal, waited_s: float = 0.0
    ) -> Effect:
        self.refused_total += 1
        limit = self._limit.peak(now_s)
        figures = (
            Figure("longest", message.longest),
            Figure("limit", limit),
            Figure("long_waiting", self.requests.unanswered_count),
            Figure("group_waited_s", waited_s),
        )
        rejected = (RejectedOption("place", _REASONS[reason]),)
        why = Why("elastic", f"refuse: {reason.name.lower()}", figures, rejected)
        is_final = reason is LongRefusal.TOO_LONG
        again_s = 0.0 if is_final else self._config.retry_after_s
        return Send(to, LongRefused(message.request, message.attempt, reason, again_s, limit, why))


_REASONS = {
    LongRefusal.NO_ROOM: "no group has had room for it",
    LongRefusal.TOO_LONG: "all instances together could not hold it",
    LongRefusal.QUEUE_FULL: "too many long requests wait for a group",
}


def not_leading(message: PlaceLong, retry_after_s: float) -> LongRefused:
    """The answer of a manager that does not lead."""
    return LongRefused(message.request, message.attempt, LongRefusal.NOT_LEADER, retry_after_s)


def _follows(term: PlanTerm, sender: Address, message: AskMembers | ReturnMembers) -> bool:
    order = term.order_of(sender)
    if order is None or order.group != message.group or order.members[0] != sender:
        return False
    return (message.epoch, message.plan_version) == (order.epoch, order.plan_version)


def _largest(candidates: Sequence[GroupCandidate]) -> int:
    return max((candidate.capacity_slots for candidate in candidates), default=0)
