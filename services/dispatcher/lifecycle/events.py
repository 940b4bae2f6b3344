"""The phases of a request as messages with reasons: admitted, first token, closed. `explain` and traces read them.

Knows what happened from its caller; decides only how many refusals are worth a record.
"""

from dataclasses import dataclass

from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import RefusedAtDoor
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken
from dunlin.messages.types import Figure, FinishReason, RejectedOption, Why
from services.dispatcher.requests.journal import Request

REFUSAL_BURST = 10
REFUSAL_INTERVAL_S = 0.1
"""Of each kind of refusal so many are recorded at once, then one in so long, which counts those left out before it:
under a flood the monitor's ring keeps room for the others."""


@dataclass(slots=True)
class RefusalRecordLimit:
    """How many refusals of one kind may be recorded now, as of `at_s`, and how many have been left out."""

    at_s: float
    available: float = REFUSAL_BURST
    skipped: int = 0

    def allow(self, now_s: float) -> bool:
        """Whether one more may be recorded; if not, it is counted."""
        self.available = min(REFUSAL_BURST, self.available + (now_s - self.at_s) / REFUSAL_INTERVAL_S)
        self.at_s = now_s
        # A little less than one is one: times are sums of small steps.
        if self.available < 1 - 1e-6:
            self.skipped += 1
            return False
        self.available -= 1
        return True


class LifecycleEvents:
    """Words the messages. Owns what is left of the records of refusals, by kind, of which there are few."""

    def __init__(self) -> None:
        self._allowances: dict[str, RefusalRecordLimit] = {}

    def admitted(self, request: Request, queued: int, placeable: int) -> Effect:
        """It waits for an instance now."""
        figures = (
            Figure("prompt_tokens", request.prompt_tokens),
            Figure("queued", queued),
            Figure("placeable_instances", placeable),
        )
        why = Why("door admission", "queue", figures)
        return Send(_recipient(request), Admitted(request.key, request.submit.trace, why, request.submit.origin))

    def first_token(self, now_s: float, request: Request) -> Effect:
        """The attempt's first token came from the instance that holds it."""
        assert request.instance is not None
        figures = (
            Figure("first_token_s", now_s - request.submitted_s),
            Figure("tokens_before", request.generated_tokens),
        )
        why = Why("prefill", "done", figures)
        queued_s = None if request.first_dispatch_s is None else request.first_dispatch_s - request.submitted_s
        return Send(_recipient(request), FirstToken(request.key, request.attempt, request.instance, why, queued_s))

    def closed(self, now_s: float, request: Request, finish: FinishReason, cause: str) -> Effect:
        """It ended, by `cause`. Call it before the journal forgets where the request was."""
        figures = (
            Figure("attempts", request.attempt),
            Figure("lost_in_a_row", request.lost_in_a_row),
            Figure("seconds", now_s - request.submitted_s),
        )
        where = (
            (RejectedOption("go on", f"it was {request.state.name.lower()}"),)
            if finish not in _NATURAL_FINISHES
            else ()
        )
        why = Why("end", cause, figures, where)
        return Send(
            _recipient(request), Closed(request.key, finish, request.generated_tokens, request.submit.trace, why)
        )

    def refused(self, now_s: float, client: Address, turned: RefusedAtDoor, queued: int) -> list[Effect]:
        """A request that was not taken, as long as not too many of its kind were recorded lately."""
        allowance = self._allowances.setdefault(turned.code, RefusalRecordLimit(now_s))
        if not allowance.allow(now_s):
            return []
        figures = (Figure("queued", queued), Figure("left_out_before", allowance.skipped))
        allowance.skipped = 0
        why = Why("door admission", f"refuse: {turned.code}", figures, (RejectedOption("queue", turned.detail),))
        return [Send(client, Closed("", FinishReason.ERROR, 0, turned.trace, why, turned.origin, turned.code))]


_NATURAL_FINISHES = (FinishReason.STOP, FinishReason.LENGTH)


def _recipient(request: Request) -> Address:
    """Who is told: the first reader, or whoever comes back under the request's name."""
    return request.readers[0] if request.readers else Address("client", request.key)
