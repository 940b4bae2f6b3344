"""The phases of a request as messages with reasons: admitted, first token, closed. `explain` and traces read them.

Knows what happened from its caller; decides only how many refusals are worth a record.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import Rejected as Turned
from dunlin.messages.door import Submit
from dunlin.messages.told import Admitted, Closed, FirstToken
from dunlin.messages.types import Figure, Finish, Rejected, Why
from services.dispatcher.journal import Request

REFUSAL_EVERY_S = 0.1
"""One refusal in so long is recorded, and counts those before it: under a flood the ring keeps room for the others."""


class Telling:
    """Words the messages. Owns the time of the last recorded refusal."""

    def __init__(self) -> None:
        self._refused_s = float("-inf")
        self._untold = 0

    def admitted(self, request: Request, queued: int, placeable: int) -> Effect:
        """It waits for an instance now."""
        figures = (
            Figure("prompt_tokens", request.prompt_tokens),
            Figure("queued", queued),
            Figure("placeable_instances", placeable),
        )
        why = Why("door admission", "queue", figures)
        return Send(_client(request), Admitted(request.key, request.submit.trace, why))

    def first_token(self, now_s: float, request: Request) -> Effect:
        """The attempt's first token came from the instance that holds it."""
        assert request.instance is not None
        figures = (Figure("first_token_s", now_s - request.submitted_s), Figure("tokens_before", request.generated))
        why = Why("prefill", "done", figures)
        return Send(_client(request), FirstToken(request.key, request.attempt, request.instance, why))

    def closed(self, now_s: float, request: Request, finish: Finish, cause: str) -> Effect:
        """It ended, by `cause`. Call it before the journal forgets where the request was."""
        figures = (
            Figure("attempts", request.attempt),
            Figure("lost_in_a_row", request.losses),
            Figure("seconds", now_s - request.submitted_s),
        )
        where = (Rejected("go on", f"it was {request.state.name.lower()}"),) if finish not in _BY_ITSELF else ()
        why = Why("end", cause, figures, where)
        return Send(_client(request), Closed(request.key, finish, request.generated, request.submit.trace, why))

    def refused(self, now_s: float, client: Address, submit: Submit, turned: Turned, queued: int) -> list[Effect]:
        """The door did not take one; recorded now and then."""
        self._untold += 1
        if now_s - self._refused_s < REFUSAL_EVERY_S:
            return []
        figures = (Figure("queued", queued), Figure("refused_since_last_record", self._untold))
        self._refused_s, self._untold = now_s, 0
        why = Why("door admission", f"refuse: {turned.code.name}", figures, (Rejected("queue", turned.detail),))
        return [Send(client, Closed("", Finish.ERROR, 0, submit.trace, why))]


_BY_ITSELF = (Finish.STOP, Finish.LENGTH)


def _client(request: Request) -> Address:
    """Who is told: the first reader, or whoever comes back under the request's name."""
    return request.readers[0] if request.readers else Address("client", request.key)
