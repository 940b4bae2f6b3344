"""What instances say of the attempts that they hold. Only the current attempt passes the fence.

Knows no client, no queue and no policy; a token that is not the very next one of its sequence reaches nobody.
"""

from dunlin.effects import Address, After, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.dispatch import (
    Accepted,
    Continued,
    Ended,
    Failed,
    Poisoned,
    Preempted,
    Refusal,
    Refused,
    Returned,
    Reused,
    Tokens,
)
from dunlin.messages.door import Delta, plain_delta
from dunlin.messages.types import Finish, f32, i32
from services.dispatcher.affinity import Affinity
from services.dispatcher.endings import Endings, Totals
from services.dispatcher.fences import Fences
from services.dispatcher.fleet import Fleet
from services.dispatcher.journal import Journal, Request, State
from services.dispatcher.moves import Moves
from services.dispatcher.telling import Telling
from services.dispatcher.timers import PauseOver
from services.dispatcher.tokens import Row, is_whole, row_of


class Attempts:
    """Judges each message against the journal."""

    def __init__(
        self,
        journal: Journal,
        fleet: Fleet,
        fences: Fences,
        endings: Endings,
        totals: Totals,
        telling: Telling,
        refusal_pause_s: float,
        moves: Moves,
        affinity: Affinity,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._endings = endings
        self._totals = totals
        self._telling = telling
        self._refusal_pause_s = refusal_pause_s
        self._moves = moves
        self._affinity = affinity

    @handles
    def on_tokens(self, now_s: float, sender: Address, message: Tokens) -> list[Effect]:
        """Append what is due and pass it on, row by row."""
        if not is_whole(message):
            self._totals.stale += 1
            return []
        self._fleet.resume(sender)
        effects: list[Effect] = []
        steady = 0
        held = self._journal.at(sender)
        columns = zip(message.request, message.attempt, message.position, message.token, message.finish, strict=True)
        for index, (number, attempt, position, token, finish) in enumerate(columns):
            request = held.get(number)
            if finish or request is None or attempt != request.attempt or not request.is_steady:
                effects += self._on_row(now_s, sender, row_of(message, index))
            elif position != len(request.tokens):
                effects += self._on_misplaced(now_s, request, position)
            else:  # nearly all there are, so that this is what a token costs here
                request.tokens.append(token)
                steady += 1
                request.losses = 0
                delta = plain_delta(token, request.cached_tokens)
                for reader in request.readers:
                    effects.append(Send(reader, delta))
        self._totals.tokens += steady
        return effects

    @handles
    def on_accepted(self, now_s: float, sender: Address, message: Accepted) -> list[Effect]:
        """It runs, or soon will."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None:
            return self._stale(sender, message.request, message.attempt)
        self._runs(now_s, request)
        self._affinity.accepted(request, sender, message.reused_tokens)
        return self._moves.accepted(request)

    @handles
    def on_reused(self, now_s: float, sender: Address, message: Reused) -> list[Effect]:
        """It starts with KV that was there; what counts for the client is how its prompt was first computed."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
        elif request.generated == 0:
            request.cached_tokens = min(message.tokens, request.prompt_tokens)
        return []

    @handles
    def on_refused(self, now_s: float, sender: Address, message: Refused) -> list[Effect]:
        """Back into the queue; the instance is left alone until it moves or a short pause is over."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None or request.state is not State.OFFERED:
            self._totals.stale += 1
            return []
        self._endings.refused(request, message.reason.name)
        self._moves.refused(request, sender)
        if message.reason is Refusal.TOO_LONG:
            request.unfit.append(sender)
            return []
        if message.reason is Refusal.INVALID:
            return self._endings.tell(now_s, request, Finish.ERROR, f"{sender.name} cannot run it: {_because(message)}")
        return [After(self._refusal_pause_s, PauseOver(sender, self._fleet.pause(sender)))]

    @handles
    def on_returned(self, now_s: float, sender: Address, message: Returned) -> list[Effect]:
        """The instance lives and the attempt does not."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        reason = message.why.chosen if message.why else "no reason given"
        request.suspicion = message.suspicion
        return self._endings.lost(now_s, request, f"returned: {reason}")

    @handles
    def on_poisoned(self, now_s: float, sender: Address, message: Poisoned) -> list[Effect]:
        """It crashes engines: nobody else shall try it."""
        return self._give_up(now_s, sender, message, "poisoned", f"poison request, stopped by {sender.name}")

    @handles
    def on_failed(self, now_s: float, sender: Address, message: Failed) -> list[Effect]:
        """It has no next token, wherever it runs."""
        return self._give_up(now_s, sender, message, "failed", f"{sender.name} cannot go on")

    @handles
    def on_preempted(self, now_s: float, sender: Address, message: Preempted) -> list[Effect]:
        """It waits there."""
        self._advance(sender, message.request, message.attempt, State.PREEMPTED)
        return []

    @handles
    def on_continued(self, now_s: float, sender: Address, message: Continued) -> list[Effect]:
        """It runs there again, after a preemption or in a new engine."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None or request.state is not State.RUNNING:
            self._advance(sender, message.request, message.attempt, State.RUNNING)
        return []

    @handles
    def on_ended(self, now_s: float, sender: Address, message: Ended) -> list[Effect]:
        """A cancelled attempt's slots are free."""
        self._fences.answered(sender, message.request, message.attempt)
        self._fleet.resume(sender)
        return []

    @handles
    def on_pause_over(self, now_s: float, sender: Address, message: PauseOver) -> list[Effect]:
        """The instance may be asked again."""
        self._fleet.resume(message.instance, message.refusal)
        return []

    def _on_row(self, now_s: float, sender: Address, row: Row) -> list[Effect]:
        request = self._journal.current(sender, row.request, row.attempt)
        if request is None:
            return self._stale(sender, row.request, row.attempt)
        if row.position != len(request.tokens):
            return self._on_misplaced(now_s, request, row.position)
        if request.state is State.OFFERED:
            self._runs(now_s, request)
        effects: list[Effect] = []
        if request.awaited:
            request.awaited = False
            effects.append(self._telling.first_token(now_s, request))
        request.tokens.append(row.token)
        request.losses = 0
        _note_scores(request, row)
        self._totals.tokens += 1
        if request.generated == 1 or row.finish is not Finish.RUNNING:
            self._affinity.computed(request, sender, self._fleet.capacity(sender))
        delta = _delta(request, row)
        effects += [Send(reader, delta) for reader in request.readers]
        if row.finish is not Finish.RUNNING:
            effects += self._endings.done(now_s, request, row.finish, row.finish.name.lower())
        return effects

    def _on_misplaced(self, now_s: float, request: Request, position: int) -> list[Effect]:
        """A repeat is dropped. A gap means tokens are missing for good: this attempt is over, the next one fills it."""
        self._totals.stale += 1
        if position < len(request.tokens):
            return []
        assert request.instance is not None
        cancel = self._fences.cancel(request.instance, request.number, request.attempt, "tokens are missing")
        text = f"token {position} came where {len(request.tokens)} was due"
        return [*cancel, *self._endings.lost(now_s, request, text)]

    def _runs(self, now_s: float, request: Request) -> None:
        if self._journal.advance(request, State.RUNNING):
            assert request.instance is not None
            self._fleet.accepted(request.instance, request.number, now_s)

    def _give_up(
        self, now_s: float, sender: Address, message: Poisoned | Failed, cause: str, text: str
    ) -> list[Effect]:
        """End the request with an error that begins with `text`; no other instance gets it."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        self._endings.refused(request, cause)
        reason = message.why.chosen if message.why else "no reason given"
        return self._endings.tell(now_s, request, Finish.ERROR, f"{text}: {reason}")

    def _advance(self, sender: Address, number: int, attempt: int, state: State) -> None:
        request = self._journal.current(sender, number, attempt)
        if request is None or not self._journal.advance(request, state):
            self._totals.stale += 1

    def _stale(self, sender: Address, number: int, attempt: int) -> list[Effect]:
        self._totals.stale += 1
        return self._fences.cancel(sender, number, attempt, "this attempt is over")


def _because(refused: Refused) -> str:
    rejected = refused.why.rejected if refused.why is not None else ()
    return rejected[0].reason if rejected else refused.reason.name


def _note_scores(request: Request, row: Row) -> None:
    scores = request.scores
    if scores is not None:
        scores.logprobs.append(row.logprob)
        scores.top_count.append(len(row.top_token))
        scores.top_token.extend(row.top_token)
        scores.top_logprob.extend(row.top_logprob)


def _delta(request: Request, row: Row) -> Delta:
    if request.scores is None:
        return plain_delta(row.token, request.cached_tokens, row.finish)
    count = i32((len(row.top_token),))
    tops = (row.top_token, row.top_logprob)
    return Delta(i32((row.token,)), f32((row.logprob,)), count, *tops, row.finish, "", request.cached_tokens)
