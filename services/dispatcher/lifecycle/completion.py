"""How an attempt or a whole request ends: journal, reservations, quotas and fences change together.

The core, `attempts.py` and their neighbours decide that something ended; this module carries it out.
"""

from dataclasses import dataclass

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.door import Delta, RefusedAtDoor, Submit, SubmitRejected
from dunlin.messages.types import FINISH_ERRORS, FinishReason, RequestClass, i32
from services.dispatcher.admission.controller import AdmissionController
from services.dispatcher.lifecycle.events import LifecycleEvents
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.replay_cache import ReplayCache
from services.dispatcher.requests.request import Request


@dataclass(slots=True)
class RequestTotals:
    """Counters that only grow, for the reports.

    Of ended requests: `finished` by STOP or LENGTH, `cancelled` by their clients, `failed` by deadline or error.
    `refused` were not admitted. `replaced` attempts were lost, `moved` ones migrated. `tokens` were generated, `stale`
    messages of instances were out of date.
    """

    finished: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    replaced: int = 0
    tokens: int = 0
    stale: int = 0


class RequestCompletion:
    """Ends requests and attempts; nothing else removes a request from the journal.

    `max_losses` attempts in a row without a token may be lost before the request ends with an error.
    """

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        admission: AdmissionController,
        totals: RequestTotals,
        replays: ReplayCache,
        events: LifecycleEvents,
        max_losses: int,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._admission = admission
        self._totals = totals
        self._replay_cache = replays
        self._events = events
        self._max_losses = max_losses

    def complete(self, now_s: float, request: Request, finish: FinishReason, cause: str) -> list[Effect]:
        """End a request whose instance, if any, knows that it ended; `cause` is the reason in its `Closed` event."""
        closed = self._events.closed(now_s, request, finish, cause)
        instance = self._journal.remove(request)
        if instance is not None:
            self._fleet.release(instance, request.number)
            self._note_served(now_s, request.submit.request_class)
        self._admission.on_ended(request.number, request.generated_tokens, now_s)
        self._replay_cache.add(now_s, request, finish)
        self._totals.finished += finish in (FinishReason.STOP, FinishReason.LENGTH)
        self._totals.cancelled += finish is FinishReason.CANCELLED
        self._totals.failed += finish in FINISH_ERRORS
        return [closed]

    def _note_served(self, now_s: float, request_class: RequestClass) -> None:
        """Count it for the pace of the queue, which is that of interactive requests: batch ones may wait."""
        if request_class is RequestClass.INTERACTIVE:
            waiting = self._journal.queued_of(request_class) + self._fleet.waiting_of(request_class)
            self._admission.on_served(now_s, waiting > 0)

    def abort(self, now_s: float, request: Request, finish: FinishReason, cause: str) -> list[Effect]:
        """End a request before its last token: cancel its attempts at instances; its readers are not notified."""
        holders = [(request.instance, request.attempt), request.migration_source or (None, 0)]
        effects = self.complete(now_s, request, finish, cause)
        for instance, attempt in holders:
            effects += self._fences.cancel(instance, request.number, attempt, cause) if instance is not None else []
        return effects

    def abort_and_notify(self, now_s: float, request: Request, finish: FinishReason, text: str) -> list[Effect]:
        """`abort`, and send `finish` with `text` to the readers."""
        last: list[Effect] = [Send(reader, Delta(i32(), finish=finish, detail=text)) for reader in request.readers]
        return [*last, *self.abort(now_s, request, finish, text)]

    def reject(self, now_s: float, client: Address, submit: Submit, refusal: SubmitRejected) -> list[Effect]:
        """Refuse a request that is not in the journal: answer its client, count and record the refusal."""
        refused = RefusedAtDoor(refusal.code.name.lower(), refusal.detail, submit.trace, submit.origin)
        return [Send(client, refusal), *self.record_refusal(now_s, client, refused)]

    def reject_unheld(self, now_s: float, request: Request, refusal: SubmitRejected) -> list[Effect]:
        """Refuse a request that no instance runs, after they were asked: it counts as one that was never admitted."""
        self._journal.remove(request)
        self._admission.on_rejected(request.number)
        effects: list[Effect] = []
        for reader in request.readers:
            effects += self.reject(now_s, reader, request.submit, refusal)
        return effects

    @handles
    def record_refusal(self, now_s: float, sender: Address, message: RefusedAtDoor) -> list[Effect]:
        """Count and record a request that this core or a door refused; it never was in the journal."""
        self._totals.refused += 1
        return self._events.refused(now_s, sender, message, self._journal.queued)

    def requeue_refused(self, request: Request, reason: str) -> None:
        """The instance refused the attempt: queue the request again."""
        assert request.instance is not None
        self._fleet.release(request.instance, request.number)
        self._journal.requeue(request, f"refused: {reason}")

    def requeue_lost(self, now_s: float, request: Request, lost: str) -> list[Effect]:
        """The attempt was lost with its instance: queue the request ahead of new ones, or end it after `max_losses`."""
        assert request.instance is not None
        self._fleet.release(request.instance, request.number)
        self._journal.requeue(request, lost)
        self._totals.replaced += 1
        request.lost_in_a_row += 1
        if request.lost_in_a_row < self._max_losses:
            return []
        text = f"given up after {request.lost_in_a_row} lost attempts; the last was {lost}"
        return self.abort_and_notify(now_s, request, FinishReason.ERROR, text)
