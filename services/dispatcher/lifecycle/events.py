"""The lifecycle events of a request, as messages with reasons: Admitted, RisenInQueue, FirstToken, Closed.

`dunlin explain` and the traces are made from them. The caller says what happened; only the rate at which refusals are
recorded is decided here.
"""

from dataclasses import dataclass

from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import RefusedAtDoor
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken, RisenInQueue
from dunlin.messages.types import Figure, FinishReason, RejectedOption, Why
from services.dispatcher.requests.request import Request

REFUSAL_BURST = 10
REFUSAL_INTERVAL_S = 0.1
"""Of each kind of refusal `REFUSAL_BURST` are recorded at once, then one per `REFUSAL_INTERVAL_S`, which carries the
number of those left out before it: a flood of refusals must not push all other reasons out of the monitor's ring."""


@dataclass(slots=True)
class RefusalRecordLimit:
    """A token bucket for the records of one kind of refusal: `available` at `at_s`; `skipped` were not recorded."""

    at_s: float
    available: float = REFUSAL_BURST
    skipped: int = 0

    def allow(self, now_s: float) -> bool:
        """Whether one more may be recorded at `now_s`; if not, it is counted as skipped."""
        self.available = min(REFUSAL_BURST, self.available + (now_s - self.at_s) / REFUSAL_INTERVAL_S)
        self.at_s = now_s
        # The tolerance is for rounding: `available` is a sum of many small steps.
        if self.available < 1 - 1e-6:
            self.skipped += 1
            return False
        self.available -= 1
        return True


class LifecycleEvents:
    """Builds the event messages. Owns the limits on refusal records by kind of refusal, of which there are few."""

    def __init__(self) -> None:
        self._record_limits: dict[str, RefusalRecordLimit] = {}

    def admitted(self, request: Request, queued: int, serving: int) -> Effect:
        """The request waits for an instance, with `queued` requests here and `serving` instances."""
        figures = (
            Figure("prompt_tokens", request.prompt_tokens),
            Figure("queued", queued),
            Figure("placeable_instances", serving),
        )
        why = Why("door admission", "queue", figures)
        return Send(_recipient(request), Admitted(request.key, request.submit.trace, why, request.submit.origin))

    def risen(self, request: Request, why: Why) -> Effect:
        """The request is of the batch class and dispatched as an interactive one from now on."""
        return Send(_recipient(request), RisenInQueue(request.key, why))

    def first_token(self, now_s: float, request: Request) -> Effect:
        """The first token of the current attempt came."""
        assert request.instance is not None
        figures = (
            Figure("first_token_s", now_s - request.submitted_s),
            Figure("tokens_before", request.generated_tokens),
        )
        why = Why("prefill", "done", figures)
        queued_s = None if request.first_dispatch_s is None else request.first_dispatch_s - request.submitted_s
        return Send(_recipient(request), FirstToken(request.key, request.attempt, request.instance, why, queued_s))

    def closed(self, now_s: float, request: Request, finish: FinishReason, cause: str) -> Effect:
        """The request ended, by `cause`. Call it before the journal removes the request: its state is in the reason."""
        figures = (
            Figure("attempts", request.attempt),
            Figure("lost_in_a_row", request.lost_in_a_row),
            Figure("seconds", now_s - request.submitted_s),
        )
        where = (
            (RejectedOption("continue", f"it was {request.state.name.lower()}"),)
            if finish not in _NATURAL_FINISHES
            else ()
        )
        why = Why("end", cause, figures, where)
        return Send(
            _recipient(request), Closed(request.key, finish, request.generated_tokens, request.submit.trace, why)
        )

    def refused(self, now_s: float, client: Address, refused: RefusedAtDoor, queued: int) -> list[Effect]:
        """A request was refused: its `Closed` event, or nothing if too many of its kind were recorded lately."""
        limit = self._record_limits.setdefault(refused.code, RefusalRecordLimit(now_s))
        if not limit.allow(now_s):
            return []
        figures = (Figure("queued", queued), Figure("left_out_before", limit.skipped))
        limit.skipped = 0
        why = Why("door admission", f"refuse: {refused.code}", figures, (RejectedOption("queue", refused.detail),))
        return [Send(client, Closed("", FinishReason.ERROR, 0, refused.trace, why, refused.origin, refused.code))]


_NATURAL_FINISHES = (FinishReason.STOP, FinishReason.LENGTH)


def _recipient(request: Request) -> Address:
    """The event's address: the first reader, or without readers one made of the request's public id."""
    return request.readers[0] if request.readers else Address("client", request.key)
