"""Which attempts are taken, and which the fence of (dispatcher, request, attempt) stops. Knows no step and no slot."""

from dunlin import limits
from dunlin.effects import Address, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place, Refusal, Refused
from dunlin.messages.types import Figure, Rejected, Why
from services.instance.arrivals import Arrival
from services.instance.claims import Claims
from services.instance.config import SchedulerConfig
from services.instance.engine_side import EngineSide
from services.instance.lives import Lives
from services.instance.migration import Migration
from services.instance.orders import Orders
from services.instance.sequences import Sequence, Sequences
from services.instance.steps import Steps


class Admission:
    """The instance's side of a hand-out."""

    def __init__(
        self,
        config: SchedulerConfig,
        sequences: Sequences,
        lives: Lives,
        steps: Steps,
        migration: Migration,
        claims: Claims,
        engine_side: EngineSide,
        orders: Orders,
    ) -> None:
        self.stale_total = 0
        self._config = config
        self._sequences = sequences
        self._lives = lives
        self._steps = steps
        self._migration = migration
        self._claims = claims
        self._engine_side = engine_side
        self._orders = orders

    @handles
    def place(self, now_s: float, sender: Address, place: Place) -> list[Effect]:
        """Accept an attempt into the waiting queue, or refuse it. A newer attempt ends the older one."""
        ready = self._engine_side.ready
        older = self._sequences.of_key((sender, place.request))
        if older is not None and older.place.attempt >= place.attempt:
            self.stale_total += 1
            return [_refuse(sender, place, Refusal.STALE, Figure("attempt_held", older.place.attempt))]
        if older is not None and self._migration.recalls(older, place):
            return self._go_on(sender, older, place)
        effects = self._lives.stop(older) if older is not None else []
        if ready is None:
            return [*effects, _refuse(sender, place, Refusal.NOT_READY)]
        if self._orders.followed is None:
            return [*effects, _refuse(sender, place, Refusal.NOT_IN_PLAN)]
        if self._migration.draining:
            return [*effects, _refuse(sender, place, Refusal.DRAINING)]
        longest, limit = place.prompt_tokens + place.max_tokens, min(ready.max_positions, self._lives.slots.capacity)
        if longest > limit or len(place.tokens) >= longest or not place.tokens:
            figures = (Figure("tokens", len(place.tokens)), Figure("longest", longest), Figure("limit", limit))
            return [*effects, _refuse(sender, place, Refusal.TOO_LONG, *figures)]
        if fault := limits.fault_of(place, ready.vocabulary):
            # No engine can take it, today or ever; no other reason says so and has a dispatcher give up on this one.
            known = Figure("vocabulary", ready.vocabulary)
            return [*effects, _refuse(sender, place, Refusal.INVALID, known, because=fault)]
        if (arrival := self._migration.arrivals.take(sender, place)) is not None:
            return [*effects, *self._arrive(sender, place, arrival)]
        if self._sequences.waiting_count >= self._config.max_waiting:
            queue = (Figure("waiting", self._sequences.waiting_count), Figure("max", self._config.max_waiting))
            return [*effects, _refuse(sender, place, Refusal.FULL, *queue)]
        return [*effects, *self._accept(sender, place)]

    @handles
    def cancel(self, now_s: float, sender: Address, cancel: Cancel) -> list[Effect]:
        """End the attempt and older ones; their dispatcher hears `Ended` when their slots are free."""
        meant = [
            sequence
            for sequence in self._sequences.of_dispatcher(sender)
            if sequence.place.request == cancel.request and sequence.place.attempt <= cancel.attempt
        ]
        if not meant:
            newer = self._sequences.of_key((sender, cancel.request))
            self.stale_total += newer is not None
            return [Send(sender, Ended(cancel.request, cancel.attempt))]
        effects: list[Effect] = []
        for sequence in meant:
            sequence.say_ended = True
            effects += self._lives.stop(sequence)
        return effects

    def _go_on(self, sender: Address, older: Sequence, place: Place) -> list[Effect]:
        """What was about to leave stays after all, as the newer attempt."""
        why = Why("migration", "goes on here", (Figure("tokens", len(older.tokens)),))
        older.place = place
        accepted = Send(sender, Accepted(place.request, place.attempt, older.number, 0.0, why))
        return [accepted, *self._migration.departures.recall(older)]

    def _arrive(self, sender: Address, place: Place, arrival: Arrival) -> list[Effect]:
        """Its room is here already: nobody is overtaken."""
        sequence = self._sequences.add(sender, place)
        figures = (Figure("tokens", len(place.tokens)), Figure("filled_tokens", arrival.filled))
        why = Why("migration", f"go on from handle {arrival.handle}", figures)
        accepted = Send(sender, Accepted(place.request, place.attempt, sequence.number, 0.0, why))
        arrived = self._lives.arrive(sequence, arrival, arrival.filled)
        return [accepted, *arrived, *self._claims.keep(sequence, arrival.claimed)]

    def _accept(self, sender: Address, place: Place) -> list[Effect]:
        before = self._sequences.waiting_tokens()
        sequence = self._sequences.add(sender, place)
        reused = self._lives.slab.reusable(sequence)
        eta_s = before * self._steps.s_per_token
        figures = (
            Figure("tokens", len(place.tokens)),
            Figure("free_slots", self._lives.slab.room),
            Figure("reused_tokens", reused),
            Figure("waiting_tokens", before),
            Figure("eta_s", eta_s),
        )
        why = Why("free slots", f"queue behind {self._sequences.waiting_count - 1}", figures)
        accepted = Send(sender, Accepted(place.request, place.attempt, sequence.number, eta_s, why, reused))
        return [accepted, *self._claims.begin(sequence)]


def _refuse(sender: Address, place: Place, reason: Refusal, *figures: Figure, because: str = "") -> Effect:
    why = Why("admission", f"refuse: {reason.name}", figures, (Rejected("accept", because or _BECAUSE[reason]),))
    return Send(sender, Refused(place.request, place.attempt, reason, why))


_BECAUSE = {
    Refusal.FULL: "the waiting queue is full",
    Refusal.TOO_LONG: "it can never fit here",
    Refusal.NOT_READY: "no engine runs",
    Refusal.NOT_IN_PLAN: "no order of the global manager has come",
    Refusal.STALE: "this attempt or a newer one is here",
    Refusal.DRAINING: "it is being emptied",
}
