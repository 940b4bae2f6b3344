"""A client's retry of a request that is known here: it joins the running request, or gets the kept answer.

Knows no instance. A request is found by tenant and idempotency key, or by its public id; with the public id the client
must also have the request's own tokens.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import Admitted, Delta, RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason
from services.dispatcher.lifecycle.completion import RequestCompletion
from services.dispatcher.lifecycle.deadlines import ReaderDeadlines
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.replay_cache import CachedAnswer, ReplayCache
from services.dispatcher.requests.request import Request, RequestState

MAX_READERS = 16
AHEAD_RETRY_S = 0.5
_LOGPROBS_GONE = "the log-probabilities of its first tokens are not known any more: send it under another key"


class RequestJoins:
    """Finds the known request that a `Submit` repeats or resumes. `joined_total` counts the clients that joined one."""

    def __init__(
        self, journal: Journal, completion: RequestCompletion, replay_cache: ReplayCache, deadlines: ReaderDeadlines
    ) -> None:
        self.joined_total = 0
        self._journal = journal
        self._completion = completion
        self._replay_cache = replay_cache
        self._deadlines = deadlines

    def join(self, now_s: float, client: Address, submit: Submit) -> tuple[bool, list[Effect]]:
        """(True, effects) if the request is known here and answered; (False, effects) if the caller must admit it."""
        request = self._journal.by_idempotency(submit.tenant, submit.idempotency) if submit.idempotency else None
        if request is None and submit.idempotency:
            replay = self._replay_cache.find(now_s, submit.tenant, submit.idempotency)
            if replay is not None:
                return True, self._send_cached(now_s, client, submit, replay)
        if request is None and submit.key:
            request = self._journal.by_key(submit.key)  # with or without an idempotency key: the id is unique
        return (False, []) if request is None else self._add_reader(now_s, client, submit, request)

    def _send_cached(self, now_s: float, client: Address, submit: Submit, replay: CachedAnswer) -> list[Effect]:
        request = replay.request
        refusal = self._refusal(submit, request)
        if refusal is not None:
            return self._completion.reject(now_s, client, submit, refusal)
        self.joined_total += 1
        return [
            Send(client, Admitted(request.key)),
            Send(client, remaining_delta(request, submit, replay.finish)),
        ]

    def _add_reader(self, now_s: float, client: Address, submit: Submit, request: Request) -> tuple[bool, list[Effect]]:
        refusal = self._refusal(submit, request) or _too_many_readers(request)
        if refusal is not None:
            return True, self._completion.reject(now_s, client, submit, refusal)
        if len(submit.received) > request.generated_tokens or submit.scored > request.scored:
            holder = self._journal.by_key(submit.key)
            is_of_another = holder is not None and holder is not request
            if submit.idempotency and (request.readers or is_of_another):
                return True, self._completion.reject(now_s, client, submit, _client_is_ahead(submit, request))
            # Another dispatcher has delivered more than what runs here: this one is out of date.
            return False, self._completion.abort_and_notify(
                now_s, request, FinishReason.CANCELLED, "its client has resumed it elsewhere"
            )
        self.joined_total += 1
        self._journal.add_reader(request, client)
        delta = remaining_delta(request, submit)
        # A first adoption may still change the public id. A client that gets tokens needs an id to resume elsewhere.
        is_settled = request.state is not RequestState.ADOPTING or request.adopted_elsewhere > 0
        needs_id = is_settled or len(delta.tokens) > 0 or delta.prompt is not None
        admitted: list[Effect] = [Send(client, Admitted(request.key))] if needs_id else []
        return True, [*admitted, Send(client, delta), *self._deadlines.begin(request, client, submit)]

    def _refusal(self, submit: Submit, request: Request) -> SubmitRejected | None:
        """Why the client may not read the request; None: it may."""
        if submit.idempotency and submit.digest != request.submit.digest:
            return idempotency_conflict(submit)
        if submit.key and not _is_own(submit, request):
            text = f"{submit.key} is no request that these tokens began: send it without resuming"
            return SubmitRejected(RejectionCode.INVALID, text)
        if request.generated_logprobs is not None and len(
            request.generated_logprobs.logprobs
        ) < request.generated_tokens - len(submit.received):
            return SubmitRejected(RejectionCode.CONFLICT, _LOGPROBS_GONE)
        if request.prompt_logprobs is not None and submit.scored < request.submit.scored:
            return SubmitRejected(RejectionCode.CONFLICT, _LOGPROBS_GONE)
        return None


def idempotency_conflict(submit: Submit) -> SubmitRejected:
    """The refusal of an idempotency key that was used for a different request."""
    text = f"the idempotency key {submit.idempotency.rpartition('/')[0]!r} was used for another request:"
    return SubmitRejected(RejectionCode.CONFLICT, f"{text} repeat that one exactly, or take a new key")


def _too_many_readers(request: Request) -> SubmitRejected | None:
    """The refusal of one reader more than a running request may have; None: there is room."""
    if len(request.readers) < MAX_READERS:
        return None
    text = f"{len(request.readers)} clients read this request already, the most that may"
    return SubmitRejected(RejectionCode.FULL, text, 1.0)


def _client_is_ahead(submit: Submit, request: Request) -> SubmitRejected:
    """The refusal of a client that has more tokens than the request here, which goes on for its other readers."""
    text = (
        f"{submit.key} has {request.generated_tokens} tokens here, and its client has {len(submit.received)}: ask again"
    )
    return SubmitRejected(RejectionCode.UNAVAILABLE, text, AHEAD_RETRY_S)


def remaining_delta(request: Request, submit: Submit, finish: FinishReason = FinishReason.RUNNING) -> Delta:
    """The request's generated tokens, and log-probabilities, that the client of `submit` has not."""
    tokens = request.tokens[request.prompt_tokens + len(submit.received) :]
    scores, prompt = request.generated_logprobs, request.prompt_logprobs
    if prompt is not None:
        prompt = prompt.part(submit.scored - request.submit.scored) or None
    if scores is None:
        return Delta(tokens, finish=finish, cached_tokens=request.cached_tokens, prompt=prompt)
    skipped = len(scores.logprobs) - len(tokens)
    tops = sum(scores.top_count[:skipped])
    return Delta(
        tokens,
        scores.logprobs[skipped:],
        scores.top_count[skipped:],
        scores.top_token[tops:],
        scores.top_logprob[tops:],
        finish,
        cached_tokens=request.cached_tokens,
        prompt=prompt,
    )


def _is_own(submit: Submit, request: Request) -> bool:
    """Whether the client's tokens and the request's are the same as far as both go."""
    if submit.tenant != request.submit.tenant or submit.tokens != request.submit.tokens:
        return False
    generated = request.tokens[request.prompt_tokens :]
    return submit.received[: len(generated)] == generated[: len(submit.received)]
