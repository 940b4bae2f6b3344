"""How a hand-out or a whole request ends: journal, reservations and fences are told together, or not at all.

Knows no message that comes in; who decides that something ended is the core or `attempts.py`.
"""

from dataclasses import dataclass

from dunlin.effects import Address, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.door import Delta, Rejected, Submit, TurnedAway
from dunlin.messages.types import Finish, i32
from services.dispatcher.admission import Admission
from services.dispatcher.fences import Fences
from services.dispatcher.fleet import Fleet
from services.dispatcher.journal import Journal, Request
from services.dispatcher.replays import Replays
from services.dispatcher.telling import Telling


@dataclass(slots=True)
class Totals:
    """What only grows. `finished` and `cancelled` ended as somebody wished, `failed` otherwise."""

    finished: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    replaced: int = 0
    tokens: int = 0
    stale: int = 0


class Endings:
    """The only way out of the journal."""

    def __init__(
        self,
        journal: Journal,
        fleet: Fleet,
        fences: Fences,
        admission: Admission,
        totals: Totals,
        replays: Replays,
        telling: Telling,
        max_losses: int,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._admission = admission
        self._totals = totals
        self._replays = replays
        self._telling = telling
        self._max_losses = max_losses

    def done(self, now_s: float, request: Request, finish: Finish, cause: str) -> list[Effect]:
        """Forget the request, by `cause`; whoever held it knows that it ended."""
        told = self._telling.closed(now_s, request, finish, cause)
        instance = self._journal.end(request)
        if instance is not None:
            self._fleet.release(instance, request.number)
            self._admission.served(now_s, self._journal.queued + self._fleet.waiting > 0)
        self._admission.ended(request.number, request.generated, now_s)
        self._replays.keep(now_s, request, finish)
        self._totals.finished += finish in (Finish.STOP, Finish.LENGTH)
        self._totals.cancelled += finish is Finish.CANCELLED
        self._totals.failed += finish in (Finish.DEADLINE, Finish.ERROR)
        return [told]

    def stop(self, now_s: float, request: Request, finish: Finish, cause: str) -> list[Effect]:
        """End it before its last token, in silence: whoever holds it must stop."""
        holders = [(request.instance, request.attempt), request.home or (None, 0)]
        effects = self.done(now_s, request, finish, cause)
        for instance, attempt in holders:
            effects += self._fences.cancel(instance, request.number, attempt, cause) if instance is not None else []
        return effects

    def tell(self, now_s: float, request: Request, finish: Finish, text: str) -> list[Effect]:
        """`stop`, and say so to its client."""
        words: list[Effect] = [Send(reader, Delta(i32(), finish=finish, detail=text)) for reader in request.readers]
        return [*words, *self.stop(now_s, request, finish, text)]

    def reject(self, now_s: float, client: Address, submit: Submit, refusal: Rejected) -> list[Effect]:
        """Say no to a client whose request is not in the journal."""
        turned = TurnedAway(refusal.code.name.lower(), refusal.detail, submit.trace, submit.origin)
        return [Send(client, refusal), *self.turned_away(now_s, client, turned)]

    @handles
    def turned_away(self, now_s: float, sender: Address, message: TurnedAway) -> list[Effect]:
        """A request that was not taken, by this core or by a door before it: it never was in the journal."""
        self._totals.refused += 1
        return self._telling.turned_away(now_s, sender, message, self._journal.queued)

    def refused(self, request: Request, reason: str) -> None:
        """The hand-out was not taken: the request waits again."""
        assert request.instance is not None
        self._fleet.release(request.instance, request.number)
        self._journal.take_back(request, f"refused: {reason}")

    def lost(self, now_s: float, request: Request, lost: str) -> list[Effect]:
        """The hand-out is over through no fault of the request: again, ahead of new ones, unless it has had enough."""
        assert request.instance is not None
        self._fleet.release(request.instance, request.number)
        self._journal.take_back(request, lost)
        self._totals.replaced += 1
        request.losses += 1
        if request.losses < self._max_losses:
            return []
        text = f"given up after {request.losses} lost hand-outs; the last was {lost}"
        return self.tell(now_s, request, Finish.ERROR, text)
