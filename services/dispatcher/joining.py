"""A client that asks for what is known here already: it joins the request that runs, or gets the answer that was kept.

Knows no instance. Whose request it is, is settled by tenant and name, or by its public id and the tokens of the client.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import Admitted, Delta, Rejected, Rejection, Submit
from dunlin.messages.types import Finish
from services.dispatcher.endings import Endings
from services.dispatcher.journal import Journal, Request, State
from services.dispatcher.replays import Replay, Replays

MOST_READERS = 16
BEHIND_RETRY_S = 0.5


class Joining:
    """Finds the request that a Submit means, if it is not a new one. `joined_total` counts those that it found."""

    def __init__(self, journal: Journal, endings: Endings, replays: Replays) -> None:
        self.joined_total = 0
        self._journal = journal
        self._endings = endings
        self._replays = replays

    def join(self, now_s: float, client: Address, submit: Submit) -> tuple[bool, list[Effect]]:
        """Let the client read what it means; False: a new request, or one that is not known here."""
        request = self._journal.of_name(submit.tenant, submit.idempotency) if submit.idempotency else None
        if request is None and submit.idempotency:
            replay = self._replays.find(now_s, submit.tenant, submit.idempotency)
            if replay is not None:
                return True, self._replay(now_s, client, submit, replay)
        if request is None and submit.key:
            request = self._journal.of_key(submit.key)  # also one that had no name: a key is one request's alone
        return (False, []) if request is None else self._read(now_s, client, submit, request)

    def _replay(self, now_s: float, client: Address, submit: Submit, replay: Replay) -> list[Effect]:
        request = replay.request
        refusal = self._refusal(submit, request)
        if refusal is not None:
            return self._endings.reject(now_s, client, submit, refusal)
        self.joined_total += 1
        return [
            Send(client, Admitted(request.key)),
            Send(client, rest(request, len(submit.received), replay.finish)),
        ]

    def _read(self, now_s: float, client: Address, submit: Submit, request: Request) -> tuple[bool, list[Effect]]:
        refusal = self._refusal(submit, request)
        if refusal is not None:
            return True, self._endings.reject(now_s, client, submit, refusal)
        if len(submit.received) > request.generated:
            if submit.idempotency and request.readers:
                return True, self._endings.reject(now_s, client, submit, _behind(submit, request))
            # What runs here is behind what another dispatcher has delivered meanwhile.
            return False, self._endings.tell(now_s, request, Finish.CANCELLED, "its client has gone on elsewhere")
        self.joined_total += 1
        self._journal.join(request, client)
        delta = rest(request, len(submit.received))
        # While it is asked for, its first name is not known; whoever gets tokens needs one to go on elsewhere.
        is_named = request.state is not State.ASKING or len(delta.tokens) > 0
        said: list[Effect] = [Send(client, Admitted(request.key))] if is_named else []
        return True, [*said, Send(client, delta)]

    def _refusal(self, submit: Submit, request: Request) -> Rejected | None:
        """Why the client may not read it; None: it may."""
        if submit.idempotency and submit.digest != request.submit.digest:
            return conflict(submit)
        if submit.key and not _is_own(submit, request):
            text = f"{submit.key} is no request that these tokens began: send it without resuming"
            return Rejected(Rejection.INVALID, text)
        if len(request.readers) >= MOST_READERS:
            text = f"{len(request.readers)} clients read this request already, the most that may"
            return Rejected(Rejection.FULL, text, 1.0)
        if request.scores is not None and len(request.scores.logprobs) < request.generated - len(submit.received):
            text = "the log-probabilities of its first tokens are not known any more: send it under another key"
            return Rejected(Rejection.CONFLICT, text)
        return None


def conflict(submit: Submit) -> Rejected:
    """The answer to a name used twice."""
    text = f"the idempotency key {submit.idempotency.rpartition('/')[0]!r} was used for another request:"
    return Rejected(Rejection.CONFLICT, f"{text} repeat that one exactly, or take a new key")


def _behind(submit: Submit, request: Request) -> Rejected:
    """The answer to a client that has more than what runs here, which others read: nobody is cut off."""
    text = f"{submit.key} has {request.generated} tokens here, and its client has {len(submit.received)}: ask again"
    return Rejected(Rejection.UNAVAILABLE, text, BEHIND_RETRY_S)


def rest(request: Request, received: int, finish: Finish = Finish.RUNNING) -> Delta:
    """Its tokens after the first `received` generated ones."""
    tokens = request.tokens[request.prompt_tokens + received :]
    scores = request.scores
    if scores is None:
        return Delta(tokens, finish=finish, cached_tokens=request.cached_tokens)
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
    )


def _is_own(submit: Submit, request: Request) -> bool:
    """Whether the client's tokens and the request's are the same as far as both go."""
    if submit.tenant != request.submit.tenant or submit.tokens != request.submit.tokens:
        return False
    generated = request.tokens[request.prompt_tokens :]
    return submit.received[: len(generated)] == generated[: len(submit.received)]
