"""How a hand-out or a whole request ends: journal, reservations and fences are told together, or not at all.

Knows no message that comes in; who decides that something ended is the core or `attempts.py`.
"""

from dataclasses import dataclass

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import Delta, RefusedAtDoor, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.admission.controller import AdmissionController
from services.dispatcher.lifecycle.events import LifecycleEvents
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal, Request
from services.dispatcher.requests.replay_cache import ReplayCache


@dataclass(slots=True)
class RequestTotals:
    """What only grows. `finished` and `cancelled` ended as somebody wished, `failed` otherwise."""

    finished: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    replaced: int = 0
    tokens: int = 0
    stale: int = 0


class RequestCompletion:
    """The only way out of the journal."""

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        admission: AdmissionController,
        totals: RequestTotals,
        replays: ReplayCache,
        telling: LifecycleEvents,
        max_losses: int,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._admission = admission
        self._totals = totals
        self._replay_cache = replays
        self._events = telling
        self._max_losses = max_losses

    def complete(self, now_s: float, request: Request, finish: FinishReason, cause: str) -> list[Effect]:
        """Forget the request, by `cause`; whoever held it knows that it ended."""
        told = self._events.closed(now_s, request, finish, cause)
        instance = self._journal.remove(request)
        if instance is not None:
            self._fleet.release(instance, request.number)
            self._admission.on_served(now_s, self._journal.queued + self._fleet.waiting > 0)
        self._admission.on_ended(request.number, request.generated_tokens, now_s)
        self._replay_cache.add(now_s, request, finish)
        self._totals.finished += finish in (FinishReason.STOP, FinishReason.LENGTH)
        self._totals.cancelled += finish is FinishReason.CANCELLED
        self._totals.failed += finish in (FinishReason.DEADLINE, FinishReason.ERROR)
        return [told]

    def abort(self, now_s: float, request: Request, finish: FinishReason, cause: str) -> list[Effect]:
        """End it before its last token, in silence: whoever holds it must stop."""
        holders = [(request.instance, request.attempt), request.migration_source or (None, 0)]
        effects = self.complete(now_s, request, finish, cause)
        for instance, attempt in holders:
            effects += self._fences.cancel(instance, request.number, attempt, cause) if instance is not None else []
        return effects

    def abort_and_notify(self, now_s: float, request: Request, finish: FinishReason, text: str) -> list[Effect]:
        """`stop`, and say so to its client."""
        words: list[Effect] = [Send(reader, Delta(i32(), finish=finish, detail=text)) for reader in request.readers]
        return [*words, *self.abort(now_s, request, finish, text)]

    def reject(self, now_s: float, client: Address, submit: Submit, refusal: SubmitRejected) -> list[Effect]:
        """Say no to a client whose request is not in the journal."""
        turned = RefusedAtDoor(refusal.code.name.lower(), refusal.detail, submit.trace, submit.origin)
        return [Send(client, refusal), *self.record_refusal(now_s, client, turned)]

    @handles
    def record_refusal(self, now_s: float, sender: Address, message: RefusedAtDoor) -> list[Effect]:
        """A request that was not taken, by this core or by a door before it: it never was in the journal."""
        self._totals.refused += 1
        return self._events.refused(now_s, sender, message, self._journal.queued)

    def requeue_refused(self, request: Request, reason: str) -> None:
        """The hand-out was not taken: the request waits again."""
        assert request.instance is not None
        self._fleet.release(request.instance, request.number)
        self._journal.requeue(request, f"refused: {reason}")

    def requeue_lost(self, now_s: float, request: Request, lost: str) -> list[Effect]:
        """The hand-out is over through no fault of the request: again, ahead of new ones, unless it has had enough."""
        assert request.instance is not None
        self._fleet.release(request.instance, request.number)
        self._journal.requeue(request, lost)
        self._totals.replaced += 1
        request.lost_in_a_row += 1
        if request.lost_in_a_row < self._max_losses:
            return []
        text = f"given up after {request.lost_in_a_row} lost hand-outs; the last was {lost}"
        return self.abort_and_notify(now_s, request, FinishReason.ERROR, text)
