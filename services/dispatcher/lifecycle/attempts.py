"""Handles what instances report of attempts. Only a message of a request's current attempt passes the fence.

A token that is not the very next one of its sequence is not delivered. Knows no client, no queue and no policy.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send, SendEach
from dunlin.messages.dispatch import (
    Accepted,
    Continued,
    Ended,
    Failed,
    Poisoned,
    Preempted,
    PromptScored,
    Refusal,
    Refused,
    Returned,
    Reused,
    Tokens,
)
from dunlin.messages.door import Delta, PromptLogprobs, single_token_delta
from dunlin.messages.types import FinishReason, f32, i32
from services.dispatcher.lifecycle.completion import RequestCompletion, RequestTotals
from services.dispatcher.lifecycle.events import LifecycleEvents
from services.dispatcher.lifecycle.migrations import Migrations
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.prefix_affinity import PrefixAffinity
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request, RequestState
from services.dispatcher.requests.steady_rows import steady_rows
from services.dispatcher.requests.timers import RefusalPauseOver
from services.dispatcher.requests.token_rows import TokenRow, is_consistent, token_row


class AttemptEvents:
    """Checks each message of an instance against the journal, then changes the request and sends to its readers."""

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        completion: RequestCompletion,
        totals: RequestTotals,
        events: LifecycleEvents,
        refusal_pause_s: float,
        migrations: Migrations,
        affinity: PrefixAffinity,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._completion = completion
        self._totals = totals
        self._events = events
        self._refusal_pause_s = refusal_pause_s
        self._migrations = migrations
        self._affinity = affinity

    @handles
    def on_tokens(self, now_s: float, sender: Address, message: Tokens) -> list[Effect]:
        """Append each row's token to its sequence and send it to the readers; rows of old attempts are cancelled."""
        if not is_consistent(message):
            self._totals.stale += 1
            return []
        self._fleet.resume(sender)
        rows = self._journal.steady_rows(sender)
        if rows is None or not rows.are_of(message):
            return self._on_rows(now_s, sender, message)
        self._totals.tokens += len(message.token)
        return [SendEach(rows.readers, rows.extend(now_s, message))]

    def _on_rows(self, now_s: float, sender: Address, message: Tokens) -> list[Effect]:
        """The tokens of a step with other rows than the one before."""
        effects: list[Effect] = []
        plain: list[Request] = []
        each = SendEach([], [])
        held = self._journal.requests_at(sender)
        columns = zip(message.request, message.attempt, message.position, message.token, message.finish, strict=True)
        for index, (number, attempt, position, token, finish) in enumerate(columns):
            request = held.get(number)
            if finish or request is None or attempt != request.attempt or not request.is_plain_decode:
                each = _begin_anew(effects, each)
                effects += self._on_row(now_s, sender, token_row(message, index))
            elif position != len(request.tokens):
                each = _begin_anew(effects, each)
                effects += self._on_misplaced(now_s, request, position)
            else:  # inlined: most other tokens come this way
                request.tokens.append(token)
                plain.append(request)
                request.lost_in_a_row = 0
                request.token_s = now_s
                delta = single_token_delta(token, request.cached_tokens)
                for reader in request.readers:
                    each.to.append(reader)
                    each.messages.append(delta)
        _begin_anew(effects, each)
        self._totals.tokens += len(plain)
        if plain and len(plain) == len(message.request) and (rows := steady_rows(plain, message)) is not None:
            self._journal.keep_steady_rows(sender, rows)
        return effects

    @handles
    def on_prompt_scored(self, now_s: float, sender: Address, message: PromptScored) -> list[Effect]:
        """Log-probabilities of the prompt go to the readers, each once; those of old attempts are cancelled."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            return self._stale(sender, message.request, message.attempt)
        known = request.prompt_logprobs
        if known is None or not _is_consistent(message):
            self._totals.stale += 1
            return []
        if message.start > request.scored + 1:
            text = f"the log-probability of prompt token {message.start} came where {request.scored + 1} was due"
            return self._on_gap(now_s, request, text)
        self._mark_running_if_dispatched(now_s, request)
        columns = message.logprob, message.rank, message.top_token, message.top_logprob
        new = PromptLogprobs(message.best, *columns).part(request.scored + 1 - message.start)
        if not new:
            self._totals.stale += 1
            return []
        known.extend(new)
        delta = Delta(i32(), cached_tokens=request.cached_tokens, prompt=new)
        return [Send(reader, delta) for reader in request.readers]

    @handles
    def on_accepted(self, now_s: float, sender: Address, message: Accepted) -> list[Effect]:
        """The attempt has its slots and runs, or will within a few steps."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            return self._stale(sender, message.request, message.attempt)
        self._mark_running(now_s, request)
        self._affinity.on_accepted(request, sender, message.reused_tokens)
        return self._migrations.on_accepted(request)

    @handles
    def on_reused(self, now_s: float, sender: Address, message: Reused) -> list[Effect]:
        """The attempt starts with KV that the instance had; `cached_tokens` is that of the prompt's first prefill."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
        elif request.generated_tokens == 0:
            request.cached_tokens = min(message.tokens, request.prompt_tokens)
        return []

    @handles
    def on_refused(self, now_s: float, sender: Address, message: Refused) -> list[Effect]:
        """Queue the request again. The instance is no candidate until it reports progress or a short pause is over."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None or request.state is not RequestState.DISPATCHED:
            self._totals.stale += 1
            return []
        request.group_refused = request.group != 0
        self._completion.requeue_refused(request, message.reason.name)
        self._migrations.on_refused(request, sender)
        request.lacks_adapter |= message.reason is Refusal.NO_ADAPTER
        if request.group and message.reason not in (Refusal.INVALID, Refusal.NO_ADAPTER):
            return []  # its group has no room, or is another by now; other requests may find room at the leader
        if message.reason is Refusal.TOO_LONG and 0 < message.limit_tokens < request.max_length:
            self._note_limit(request, sender, message.limit_tokens)
            return []
        if message.reason in (Refusal.TOO_LONG, Refusal.NO_ADAPTER):
            request.excluded_instances.append(sender)
            return []
        if message.reason is Refusal.INVALID:
            return self._completion.abort_and_notify(
                now_s, request, FinishReason.ERROR, f"{sender.name} cannot run it: {_refusal_text(message)}"
            )
        return [After(self._refusal_pause_s, RefusalPauseOver(sender, self._fleet.pause(sender)))]

    @handles
    def on_returned(self, now_s: float, sender: Address, message: Returned) -> list[Effect]:
        """The instance gave the attempt up, and serves on: queue the request again."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        reason = message.why.chosen if message.why else "no reason given"
        request.suspicion, request.trial_stop = message.suspicion, len(request.tokens)
        return self._completion.requeue_lost(now_s, request, f"returned: {reason}")

    @handles
    def on_poisoned(self, now_s: float, sender: Address, message: Poisoned) -> list[Effect]:
        """The request crashes engines: end it, so that no other instance runs it."""
        return self._end_with_error(now_s, sender, message, "poisoned", f"poison request, stopped by {sender.name}")

    @handles
    def on_failed(self, now_s: float, sender: Address, message: Failed) -> list[Effect]:
        """The request has no valid next token, wherever it runs: end it."""
        return self._end_with_error(now_s, sender, message, "failed", f"{sender.name} cannot go on")

    @handles
    def on_preempted(self, now_s: float, sender: Address, message: Preempted) -> list[Effect]:
        """The attempt waits at its instance, preempted; perhaps again, before it could continue."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None or request.state is not RequestState.PREEMPTED:
            self._advance(sender, message.request, message.attempt, RequestState.PREEMPTED)
        return []

    @handles
    def on_continued(self, now_s: float, sender: Address, message: Continued) -> list[Effect]:
        """The attempt runs again at its instance, after a preemption or in a new engine."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is not None:
            request.suspicion, request.trial_stop = message.suspicion, message.trial_stop
        if request is None or request.state is not RequestState.RUNNING:
            self._advance(sender, message.request, message.attempt, RequestState.RUNNING)
        return []

    @handles
    def on_ended(self, now_s: float, sender: Address, message: Ended) -> list[Effect]:
        """The slots of a cancelled attempt are free."""
        self._fences.on_ended(sender, message.request, message.attempt)
        self._fleet.resume(sender)
        return []

    @handles
    def on_pause_over(self, now_s: float, sender: Address, message: RefusalPauseOver) -> list[Effect]:
        """The pause after a refusal is over: the instance is a candidate again."""
        self._fleet.resume(message.instance, message.refusal)
        return []

    def _note_limit(self, request: Request, instance: Address, tokens: int) -> None:
        """The view was older than what the instance has: this counts until the next one, and the instance is asked
        again where the request fits then. What it would have had there is no limit of a request that has not begun.
        """
        self._fleet.limit_length(instance, tokens)
        if not request.generated_tokens:
            request.max_tokens = request.submit.max_tokens

    def _on_row(self, now_s: float, sender: Address, row: TokenRow) -> list[Effect]:
        request = self._journal.current_attempt(sender, row.request, row.attempt)
        if request is None:
            return self._stale(sender, row.request, row.attempt)
        if row.position != len(request.tokens):
            return self._on_misplaced(now_s, request, row.position)
        self._mark_running_if_dispatched(now_s, request)
        effects: list[Effect] = []
        if request.awaits_first_token and request.lacks_scores:
            return self._on_gap(now_s, request, f"log-probabilities of the prompt end at {request.scored}")
        if request.awaits_first_token:
            request.awaits_first_token = False
            effects.append(self._events.first_token(now_s, request))
        request.tokens.append(row.token)
        request.lost_in_a_row = 0
        request.token_s = now_s
        _record_logprobs(request, row)
        self._totals.tokens += 1
        if request.generated_tokens == 1 or row.finish is not FinishReason.RUNNING:
            self._affinity.on_computed(request, sender, self._fleet.capacity_slots(sender))
        delta = _delta(request, row)
        effects += [Send(reader, delta) for reader in request.readers]
        if row.finish is not FinishReason.RUNNING:
            effects += self._completion.complete(now_s, request, row.finish, row.finish.name.lower())
        return effects

    def _on_misplaced(self, now_s: float, request: Request, position: int) -> list[Effect]:
        """Drop a repeated token; end the attempt after a gap."""
        self._totals.stale += 1
        if position < len(request.tokens):
            return []
        return self._on_gap(now_s, request, f"token {position} came where {len(request.tokens)} was due")

    def _on_gap(self, now_s: float, request: Request, text: str) -> list[Effect]:
        """What is missing never comes: end the attempt, the next computes it."""
        assert request.instance is not None
        cancel = self._fences.cancel(request.instance, request.number, request.attempt, "tokens are missing")
        return [*cancel, *self._completion.requeue_lost(now_s, request, text)]

    def _mark_running_if_dispatched(self, now_s: float, request: Request) -> None:
        if request.state is RequestState.DISPATCHED:
            self._mark_running(now_s, request)

    def _mark_running(self, now_s: float, request: Request) -> None:
        if self._journal.advance(request, RequestState.RUNNING):
            assert request.instance is not None
            self._fleet.on_accepted(request.instance, request.number, now_s)

    def _end_with_error(
        self, now_s: float, sender: Address, message: Poisoned | Failed, cause: str, text: str
    ) -> list[Effect]:
        """End the request with an error that begins with `text`; no other instance gets it."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        self._completion.requeue_refused(request, cause)
        reason = message.why.chosen if message.why else "no reason given"
        return self._completion.abort_and_notify(now_s, request, FinishReason.ERROR, f"{text}: {reason}")

    def _advance(self, sender: Address, number: int, attempt: int, state: RequestState) -> None:
        request = self._journal.current_attempt(sender, number, attempt)
        if request is None or not self._journal.advance(request, state):
            self._totals.stale += 1

    def _stale(self, sender: Address, number: int, attempt: int) -> list[Effect]:
        self._totals.stale += 1
        return self._fences.cancel(sender, number, attempt, "this attempt is over")


def _begin_anew(effects: list[Effect], each: SendEach) -> SendEach:
    """Add what `each` has to the effects; a new one for what follows."""
    if not each.to:
        return each
    effects.append(each)
    return SendEach([], [])


def _is_consistent(message: PromptScored) -> bool:
    """Whether the columns agree in length; if not, nothing of the message can be trusted."""
    tokens, tops = len(message.logprob), len(message.logprob) * message.best
    return message.start > 0 and (len(message.rank), len(message.top_token), len(message.top_logprob)) == (
        tokens,
        tops,
        tops,
    )


def _refusal_text(refused: Refused) -> str:
    rejected = refused.why.rejected if refused.why is not None else ()
    return rejected[0].reason if rejected else refused.reason.name


def _record_logprobs(request: Request, row: TokenRow) -> None:
    scores = request.generated_logprobs
    if scores is not None:
        scores.logprobs.append(row.logprob)
        scores.top_count.append(len(row.top_token))
        scores.top_token.extend(row.top_token)
        scores.top_logprob.extend(row.top_logprob)


def _delta(request: Request, row: TokenRow) -> Delta:
    if request.generated_logprobs is None:
        return single_token_delta(row.token, request.cached_tokens, row.finish)
    count = i32((len(row.top_token),))
    tops = (row.top_token, row.top_logprob)
    return Delta(i32((row.token,)), f32((row.logprob,)), count, *tops, row.finish, "", request.cached_tokens)
