"""Finds groups for the requests that no instance alone can hold: asks the global manager that leads.

Each attempt of such a request is asked for once, with all the tokens that it has by then; the answer names the leader
that it is dispatched to. Without a leading manager for a while, it goes to the group with most room in the last view.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.placement import Leads, LongPlaced, LongRefusal, LongRefused, PlaceLong, WithdrawLong
from dunlin.messages.types import Figure, FinishReason, RejectedOption, Why
from dunlin.policies.groups.long_requests import KnownGroup, roomiest_group
from services.dispatcher.config import PlacementConfig
from services.dispatcher.lifecycle.completion import RequestCompletion, RequestTotals
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.group_capacity import GroupCapacity
from services.dispatcher.placement.placer import RequestPlacer
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request, RequestState
from services.dispatcher.requests.timers import LeaderlessDue, LongAskDue


class LongRequestPlacer:
    """Owns what the managers said of their terms, and whether none has led for long. Its requests are
    `journal.deferred`.
    """

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        capacity: GroupCapacity,
        placer: RequestPlacer,
        completion: RequestCompletion,
        totals: RequestTotals,
        config: PlacementConfig,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._capacity = capacity
        self._placer = placer
        self._completion = completion
        self._totals = totals
        self._pause_s = config.refusal_pause_s
        self._leaderless_s = config.leaderless_s
        self._terms: dict[Address, int] = {}
        self._is_absence_noted = self._is_leaderless = False
        self._absences = 0

    @property
    def leader(self) -> Address | None:
        """The manager with the newest term of those that said that they lead; None: none does."""
        leading = [(epoch, manager) for manager, epoch in self._terms.items() if epoch]
        return max(leading)[1] if leading else None

    def on_change(self, now_s: float) -> list[Effect]:
        """Ask for what was deferred since the last message, and withdraw what ended."""
        entered, ended = self._journal.deferred.take_changes()
        effects: list[Effect] = []
        for request in ended:
            effects += self._withdraw(request)
        for request in entered:
            if request.is_deferred and request.group_refused:
                effects.append(self._ask_later(request, self._pause_s))
            elif request.is_deferred:
                effects += self._ask(now_s, request)
        return effects

    def on_view(self, now_s: float) -> list[Effect]:
        """The view changed: without a manager, a group may have room now."""
        self._capacity.note_view(now_s)
        return self._place_without_manager(now_s) if len(self._journal.deferred) else []

    def on_manager_gone(self, now_s: float, manager: Address) -> list[Effect]:
        """The stream to a manager ended: it has forgotten what it was asked."""
        return self._note_term(now_s, manager, 0)

    @handles
    def on_leads(self, now_s: float, sender: Address, message: Leads) -> list[Effect]:
        """A manager leads, or does not: ask the one that does."""
        return self._note_term(now_s, sender, message.epoch)

    @handles
    def on_placed(self, now_s: float, sender: Address, message: LongPlaced) -> list[Effect]:
        """Dispatch the request to the leader of its group; if that is out of reach, ask once more."""
        request = self._asked(sender, message.request, message.attempt)
        if request is None:
            return []
        if not self._fleet.can_accept_migrated(message.leader):
            return [*self._withdraw(request), self._ask_later(request, self._pause_s)]
        return [self._dispatch(now_s, request, message.leader, message.group, message.why or Why("elastic"))]

    @handles
    def on_refused(self, now_s: float, sender: Address, message: LongRefused) -> list[Effect]:
        """No group: what fits one instance goes there, what fits nowhere ends, all else is asked for again."""
        request = self._asked(sender, message.request, message.attempt)
        if request is None:
            return []
        request.asked = None
        if not self._capacity.fits_no_instance(request):
            self._journal.queue_alone(request)
            return []
        if message.reason is not LongRefusal.TOO_LONG:
            return [self._ask_later(request, message.retry_after_s or self._pause_s)]
        limit = message.limit_tokens or self._capacity.pool_tokens(now_s)
        text = f"{_longest(request)} tokens are more than all instances together can hold, {limit}"
        return self._completion.abort_and_notify(now_s, request, FinishReason.TOO_LONG, text)

    @handles
    def on_ask_due(self, now_s: float, sender: Address, message: LongAskDue) -> list[Effect]:
        """The pause after a refusal is over."""
        request = self._journal.get(message.request)
        if request is None or not request.is_deferred or request.attempt != message.attempt:
            return []
        return self._ask(now_s, request)

    @handles
    def on_leaderless_due(self, now_s: float, sender: Address, message: LeaderlessDue) -> list[Effect]:
        """No manager has led for long enough: use the groups that there are."""
        self._is_leaderless = self._is_leaderless or message.absence == self._absences
        return self._place_without_manager(now_s)

    def _ask(self, now_s: float, request: Request) -> list[Effect]:
        leader = self.leader
        request.group_refused = False
        if leader is None:
            return [*self._note_absence(), *self._place_without_manager(now_s)]
        if (request.asked, request.asked_attempt) == (leader, request.attempt + 1):
            return []
        request.asked, request.asked_attempt = leader, request.attempt + 1
        tokens, longest = len(request.tokens), _longest(request)
        alone = self._fleet.fleet_max_length(request.excluded_instances) or 0
        figures = (Figure("tokens", tokens), Figure("longest", longest), Figure("instance_limit", alone))
        rejected = [RejectedOption(*request.last_outcome)] if request.last_outcome else []
        why = Why("long", f"ask {leader.name} for a group", figures, tuple(rejected))
        excluded = tuple(request.excluded_instances)
        ask = PlaceLong(
            request.number,
            request.attempt + 1,
            tokens,
            longest,
            request.dispatched_as,
            excluded,
            why,
            request.generated_tokens,
            now_s - request.submitted_s,
        )
        return [Send(leader, ask)]

    def _ask_later(self, request: Request, delay_s: float) -> Effect:
        return After(delay_s, LongAskDue(request.number, request.attempt))

    def _withdraw(self, request: Request) -> list[Effect]:
        manager, request.asked = request.asked, None
        if manager not in self._terms:
            return []
        return [Send(manager, WithdrawLong(request.number, request.asked_attempt))]

    def _asked(self, manager: Address, number: int, attempt: int) -> Request | None:
        """The request that this manager was asked about for this attempt, and that waits for the answer."""
        request = self._journal.get(number)
        if request is not None and request.is_deferred and request.attempt + 1 == attempt == request.asked_attempt:
            return request if request.asked == manager else None
        self._totals.stale += 1
        return None

    def _note_term(self, now_s: float, manager: Address, epoch: int) -> list[Effect]:
        """A manager's term began, ended or is gone with it: it knows nothing of what it was asked before."""
        if epoch:
            self._terms[manager] = epoch
        else:
            self._terms.pop(manager, None)
        if self.leader is not None:
            self._is_absence_noted = self._is_leaderless = False
            self._absences += 1
        effects: list[Effect] = []
        for request in self._journal.deferred:
            if request.is_deferred and (request.asked == manager or request.asked != self.leader):
                request.asked = None
                effects += self._ask(now_s, request)
        return effects

    def _note_absence(self) -> list[Effect]:
        """A request waits and no manager leads: it counts from now on, unless that was noted before."""
        if self._is_absence_noted:
            return []
        self._is_absence_noted = True
        self._absences += 1
        return [After(self._leaderless_s, LeaderlessDue(self._absences))]

    def _place_without_manager(self, now_s: float) -> list[Effect]:
        """Dispatch what waits to the groups of the last view, in order, once no manager has led for long enough."""
        if not self._is_leaderless:
            return []
        effects: list[Effect] = []
        for request in list(self._journal.deferred):
            if not self._capacity.fits_no_instance(request):
                self._journal.queue_alone(request)
                continue
            choice = roomiest_group(_longest(request), self._groups_with_room())
            if choice is None:
                break
            group = choice.group
            effects.append(self._dispatch(now_s, request, group.leader, group.number, choice.why))
        return effects

    def _groups_with_room(self) -> list[KnownGroup]:
        """The groups of the last view, without the room of what was dispatched there and not accepted yet."""
        groups = []
        for group in self._capacity.known_groups():
            sent = self._journal.requests_at(group.leader).values()
            taken = sum(_longest(one) for one in sent if one.group and one.state is RequestState.DISPATCHED)
            groups.append(KnownGroup(group.number, group.leader, group.free_slots - taken))
        return groups

    def _dispatch(self, now_s: float, request: Request, leader: Address, group: int, why: Why) -> Effect:
        if request.max_tokens is None:
            longest = self._capacity.pool_tokens(now_s)
            request.max_tokens = max(longest, len(request.tokens) + 1) - request.prompt_tokens
        if request.first_dispatch_s is None:
            request.first_dispatch_s = now_s
        return self._placer.dispatch(now_s, request, leader, why, group=group)


def _longest(request: Request) -> int:
    """Tokens that a group must hold for it; without a `max_tokens` of the client's, one more than it has."""
    return max(request.prompt_tokens + (request.submit.max_tokens or 1), len(request.tokens) + 1)
