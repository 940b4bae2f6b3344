"""What happens to a sequence: it starts, is preempted, comes back, and ends. One method per turn of its life.

Keeps slots, engine, host tier and dispatcher in step with the state. Knows no batch and no queue's order.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Continued, Ended, Preempted, Returned
from dunlin.messages.engine import Close, MoveDone, Open
from dunlin.messages.pool import RegionReserved
from dunlin.messages.types import Figure, MoveStatus, Rejected, Why, i32
from services.instance.sequences import Sequence, Sequences, State
from services.instance.slots import SlotTable, Use
from services.instance.tier import HostTier


class Lives:
    """Carries the turns out. `slots` is another table after each start of the engine."""

    def __init__(self, engine: Address, sequences: Sequences, tier: HostTier) -> None:
        self.slots = SlotTable(0)
        self.preemptions_total = 0
        self.restored_tokens_total = 0
        self.recomputed_tokens_total = 0
        self._engine = engine
        self._sequences = sequences
        self._tier = tier

    def start(self, sequence: Sequence, slots: int) -> list[Effect]:
        """Give a waiting sequence `slots` slots (the caller knows that they are free) and let it run, or restore it."""
        granted = self.slots.grow(sequence.number, slots)
        assert granted, f"{sequence.name}: {slots} slots of {self.slots!r}"
        place = sequence.place
        opened = Open(
            sequence.number,
            i32(sequence.tokens),
            place.prompt_tokens,
            place.max_tokens,
            place.sampling,
            place.stop_ids,
        )
        if sequence.host is None:
            self._sequences.go(sequence, State.RUNNING)
            return [Send(self._engine, opened), *self._continued(sequence, 0)]
        self._sequences.go(sequence, State.RESTORING)
        extents = self.slots.holding(sequence.number).span(0, sequence.host_tokens)
        self.slots.mark(sequence.number, Use.MOVING)
        return [Send(self._engine, opened), *self._tier.restore(sequence, extents)]

    def preempt(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Take a running sequence's slots, as soon as no step uses them."""
        self.preemptions_total += 1
        self._sequences.go(sequence, State.DRAINING)
        place = sequence.place
        said = Send(sequence.dispatcher, Preempted(place.request, place.attempt, why))
        return [said, *self.settle(sequence)]

    def settle(self, sequence: Sequence) -> list[Effect]:
        """Go on with what waited for outstanding steps, if none names the sequence any more."""
        if sequence.in_steps > 0:
            return []
        if sequence.state is State.ENDING:
            return self._end(sequence)
        if sequence.state is State.DRAINING:
            return self._leave_slab(sequence)
        return []

    def reserved(self, message: RegionReserved) -> list[Effect]:
        """There is room in the host tier."""
        sequence = self._tier.answered(message.ticket)
        if sequence is None:
            return self._tier.refuse(message.host)
        self._sequences.go(sequence, State.SPILLING)
        extents = self.slots.holding(sequence.number).span(0, sequence.computed)
        self.slots.mark(sequence.number, Use.MOVING)
        return self._tier.spill(sequence, message, sequence.computed, extents)

    def refused(self, ticket: int) -> list[Effect]:
        """There is none."""
        sequence = self._tier.answered(ticket)
        return self._give_up_slots(sequence) if sequence is not None else []

    def unanswered(self, ticket: int) -> list[Effect]:
        """Nobody says whether there is: go on without."""
        sequence = self._tier.unanswered(ticket)
        return self._give_up_slots(sequence) if sequence is not None else []

    def landed(self, done: MoveDone) -> list[Effect]:
        """A move ended."""
        sequence = self._tier.landed(done.move)
        if sequence is None:
            return []
        return self._moved(sequence, done) + self._tier.map()

    def _moved(self, sequence: Sequence, done: MoveDone) -> list[Effect]:
        if sequence.state is State.ENDING:
            return self._end(sequence)
        if sequence.state is State.SPILLING:
            return self._spilled(sequence, done)
        return self._restored(sequence, done)

    def tier_gone(self, kvstore: Address | None, asked: list[Sequence]) -> list[Effect]:
        """The kvstore is gone: what was asked for will not come, what was kept there is lost."""
        effects: list[Effect] = []
        for sequence in self._sequences.waiting():
            if sequence.keeper == kvstore:
                effects += self._tier.drop(sequence)
        for sequence in asked:
            effects += self._give_up_slots(sequence)
        return effects

    def stop(self, sequence: Sequence) -> list[Effect]:
        """Nobody wants more of it: it ends, at once or when its slots are out of use."""
        if sequence.state is State.ENDING:
            return []
        busy = sequence.in_steps > 0 or sequence.state in (State.SPILLING, State.RESTORING)
        if not busy:
            self._tier.withdraw(sequence)
            return self._end(sequence)
        self._sequences.go(sequence, State.ENDING)
        return [Send(self._engine, Close(sequence.number))]

    def give_back(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Hand an accepted attempt back to its dispatcher, which places it anew."""
        place = sequence.place
        returned = Send(sequence.dispatcher, Returned(place.request, place.attempt, why))
        return [returned, *self.stop(sequence)]

    def engine_gone(self, why: Why) -> list[Effect]:
        """Nothing in the slab can be reached any more: every attempt goes back, every slot is free."""
        self._tier.engine_gone()
        self.slots = SlotTable(0)
        effects: list[Effect] = []
        for sequence in self._sequences.all():
            sequence.in_steps = 0
            if sequence.state is not State.ENDING:
                place = sequence.place
                effects.append(Send(sequence.dispatcher, Returned(place.request, place.attempt, why)))
            self._tier.withdraw(sequence)
            effects += self._end(sequence)
        return effects

    def _leave_slab(self, sequence: Sequence) -> list[Effect]:
        sequence.kv_tokens = sequence.computed
        if not self._tier.usable or sequence.computed == 0:
            return self._give_up_slots(sequence)
        self._sequences.go(sequence, State.ASKING)
        size_bytes = self._tier.size_bytes(sequence.computed)
        figures = (Figure("tokens", sequence.computed), Figure("bytes", size_bytes))
        rejected = Rejected("recompute", f"{sequence.computed} tokens would be computed again")
        return self._tier.ask(sequence, sequence.computed, Why("spill", "host tier", figures, (rejected,)))

    def _spilled(self, sequence: Sequence, done: MoveDone) -> list[Effect]:
        copied = done.status is MoveStatus.OK
        effects = self._tier.commit(sequence, done.checksum) if copied else self._tier.drop(sequence)
        return effects + self._give_up_slots(sequence)

    def _give_up_slots(self, sequence: Sequence) -> list[Effect]:
        closed = Send(self._engine, Close(sequence.number))
        self.slots.release(sequence.number)
        sequence.computed = 0
        sequence.preempted = True
        self._sequences.renumber(sequence)
        self._sequences.go(sequence, State.WAITING)
        return [closed]

    def _restored(self, sequence: Sequence, done: MoveDone) -> list[Effect]:
        restored = sequence.host_tokens if done.status is MoveStatus.OK else 0
        self._tier.restored_total += restored > 0
        effects = self._tier.drop(sequence, done.status is MoveStatus.CORRUPT)
        sequence.computed = restored
        self.slots.mark(sequence.number, Use.OWNED)
        self._sequences.go(sequence, State.RUNNING)
        return effects + self._continued(sequence, restored)

    def _continued(self, sequence: Sequence, restored: int) -> list[Effect]:
        if not sequence.preempted:
            return []
        sequence.preempted = False
        recomputed = sequence.kv_tokens - restored
        self.restored_tokens_total += restored
        self.recomputed_tokens_total += recomputed
        place = sequence.place
        figures = (Figure("restored_tokens", restored), Figure("recomputed_tokens", recomputed))
        chosen = "restored from the host tier" if restored else "recomputed"
        why = Why("resume", chosen, (*figures, Figure("free_slots", self.slots.free)))
        said = Continued(place.request, place.attempt, sequence.number, restored, recomputed, why)
        return [Send(sequence.dispatcher, said)]

    def _end(self, sequence: Sequence) -> list[Effect]:
        known = sequence.state not in (State.WAITING, State.ENDING)
        effects: list[Effect] = [Send(self._engine, Close(sequence.number))] if known else []
        self.slots.release(sequence.number)
        effects += self._tier.drop(sequence)
        self._sequences.go(sequence, State.ENDED)
        if sequence.say_ended:
            effects.append(Send(sequence.dispatcher, Ended(sequence.place.request, sequence.place.attempt)))
        return effects
