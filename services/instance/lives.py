"""What happens to a sequence: it starts, is preempted, comes back, and ends. One method per turn of its life.

Keeps slots, engine, host tier and dispatcher in step with the state. Knows no batch and no queue's order.
"""

from collections.abc import Collection
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Continued, Ended, Failed, Preempted, Returned, Reused
from dunlin.messages.engine import Close, MoveDone, Open
from dunlin.messages.types import Figure, HostRegion, MoveStatus, Priority, Rejected, Why, i32, i64
from dunlin.policies.pressure import Candidate, PressurePolicy, spill
from services.instance.sequences import Sequence, Sequences, State
from services.instance.slab import Slab
from services.instance.slots import Owner, SlotTable, Use
from services.instance.tickets import HostReservation, PendingMove, Purpose
from services.instance.tier import HostTier


class Lives:
    """Carries the turns out. `slab` is another one after each start of the engine.

    `keeps`: a sequence that came back from the host tier leaves its regions there, as checkpoints.
    """

    def __init__(
        self,
        engine: Address,
        sequences: Sequences,
        tier: HostTier,
        pressure: PressurePolicy = spill,
        *,
        keeps: bool = False,
    ) -> None:
        self.slab = Slab()
        self.preemptions_total = 0
        self.restored_tokens_total = 0
        self.recomputed_tokens_total = 0
        self.prefix_hit_tokens_total = 0
        self.prefix_query_tokens_total = 0
        self.claimed_tokens_total = 0
        self._engine = engine
        self._sequences = sequences
        self._tier = tier
        self._pressure = pressure
        self._keeps = keeps

    @property
    def slots(self) -> SlotTable:
        """The slab's table."""
        return self.slab.table

    def start(self, sequence: Sequence, slots: int) -> list[Effect]:
        """Give a waiting sequence `slots` slots (the caller knows that they are free) and let it run, or restore it."""
        reused = self.slab.share(sequence)
        granted = self.slab.grow(sequence, slots - reused)
        assert granted, f"{sequence.name}: {slots} slots of {self.slab!r}"
        sequence.computed = sequence.answered = reused
        opened = self.open(sequence)
        moves = self._restore(sequence)
        if not moves:
            self._sequences.go(sequence, State.RUNNING)
            return [opened, *self._reused(sequence), *self._continued(sequence, 0)]
        self._sequences.go(sequence, State.RESTORING)
        self.slab.mark(sequence, Use.MOVING)
        return [opened, *self._reused(sequence), *moves]

    def open(self, sequence: Sequence) -> Send:
        """Make it known to the engine, with the KV of its first tokens that lies in the slab."""
        place, extents = sequence.place, self.slab.extents(sequence, 0, sequence.answered)
        opened = Open(
            sequence.number,
            i32(sequence.tokens),
            place.prompt_tokens,
            place.max_tokens,
            place.sampling,
            place.stop_ids,
            i64([first for first, _ in extents]),
            i64([length for _, length in extents]),
        )
        return Send(self._engine, opened)

    def preempt(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Take a running sequence's slots, as soon as no step uses them."""
        self.preemptions_total += 1
        self._sequences.go(sequence, State.DRAINING)
        choice = self._pressure(Candidate(sequence.computed, sequence.kept_tokens))
        sequence.spills = choice.spills
        if not choice.spills:
            why = replace(why, rejected=(*why.rejected, choice.instead))
        place = sequence.place
        said = Send(sequence.dispatcher, Preempted(place.request, place.attempt, why))
        return [said, *self.settle(sequence)]

    def settle(self, sequence: Sequence) -> list[Effect]:
        """Go on with what waited for outstanding steps, if none names the sequence any more."""
        if sequence.in_steps > 0:
            return []
        if sequence.state is State.ENDING:
            return self.end(sequence)
        if sequence.state is State.DRAINING:
            return self._leave_slab(sequence)
        return []

    def reserved(self, asked: HostReservation, host: HostRegion) -> list[Effect]:
        """There is room in the host tier."""
        sequence = asked.sequence
        self._sequences.go(sequence, State.SPILLING)
        extents = self.slab.extents(sequence, asked.region.start, asked.region.stop)
        self.slab.mark(sequence, Use.MOVING)
        sequence.in_moves += 1
        return self._tier.copy_out(asked, host, extents, Priority.KV)

    def ask_again(self, asked: HostReservation) -> list[Effect]:
        """There is more room than there was."""
        return self._ask_for_room(asked.sequence)

    def without_room(self, asked: HostReservation) -> list[Effect]:
        """There is none, or nobody says whether there is: go on without."""
        return self._give_up_slots(asked.sequence)

    def landed(self, move: PendingMove, done: MoveDone) -> list[Effect]:
        """A move that a sequence waits for ended."""
        sequence = move.sequence
        sequence.in_moves -= 1
        if move.purpose is Purpose.SPILL:
            return self._spilled(move, done)
        effects = self._came_back(move, done)
        if sequence.in_moves:
            return effects
        return effects + (self.end(sequence) if sequence.state is State.ENDING else self._restored(sequence))

    def tier_gone(self, kvstore: Address | None) -> list[Effect]:
        """The kvstore is gone: what was kept there is lost."""
        effects: list[Effect] = []
        for sequence in self._sequences:
            if sequence.kept and sequence.kept[0].keeper == kvstore:
                effects += self._tier.cut(sequence)
        return effects

    def taken(self, names: Collection[tuple[int, int]]) -> list[Effect]:
        """Regions, by (handle, generation), were claimed for another attempt: nothing from there on is kept here."""
        effects: list[Effect] = []
        for sequence in self._sequences:
            lost = [kept for kept in sequence.kept if (kept.host.handle, kept.host.generation) in names]
            if lost:
                sequence.kept = [kept for kept in sequence.kept if kept not in lost]
                effects += self._tier.cut(sequence, lost[0].region.start)
        return effects

    def arrive(self, sequence: Sequence, owner: Owner, tokens: int) -> list[Effect]:
        """Let a waiting sequence run with the slots of `owner`, where the KV of its first `tokens` tokens lies already.

        The last token is computed in any case: its step samples the next one.
        """
        self.slab.take_over(sequence, owner)
        held = min(tokens, len(sequence.tokens) - 1)
        sequence.computed = sequence.answered = held
        self._sequences.go(sequence, State.RUNNING)
        return [self.open(sequence)]

    def go_on(self, sequence: Sequence) -> None:
        """One that was about to leave stays: it runs, or waits as before."""
        held = self.slab.held(sequence)
        self._sequences.go(sequence, State.RUNNING if held else State.WAITING)

    def stop(self, sequence: Sequence) -> list[Effect]:
        """Nobody wants more of it: it ends, at once or when its slots are out of use."""
        if sequence.state is State.ENDING:
            return []
        busy = sequence.in_steps > 0 or sequence.state in (State.SPILLING, State.RESTORING)
        if not busy:
            self._tier.withdraw(sequence)
            return self.end(sequence)
        self._sequences.go(sequence, State.ENDING)
        return [Send(self._engine, Close(sequence.number))]

    def fail(self, sequence: Sequence) -> list[Effect]:
        """End it: its next token cannot be chosen, and no other instance would find another."""
        place = sequence.place
        chosen = f"the model's logits after token {len(sequence.tokens)} are not finite"
        rejected = Rejected("hand it out again", "the same tokens give the same logits")
        why = Why("engine", chosen, (Figure("tokens", len(sequence.tokens)),), (rejected,))
        return [Send(sequence.dispatcher, Failed(place.request, place.attempt, why)), *self.stop(sequence)]

    def give_back(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Hand an accepted attempt back to its dispatcher, which places it anew."""
        place = sequence.place
        returned = Send(sequence.dispatcher, Returned(place.request, place.attempt, why))
        return [returned, *self.stop(sequence)]

    def end(self, sequence: Sequence) -> list[Effect]:
        """It is over, and nothing uses its slots."""
        known = sequence.state not in (State.WAITING, State.ENDING)
        effects: list[Effect] = [Send(self._engine, Close(sequence.number))] if known else []
        effects += self._tier.cancel(sequence, Purpose.CHECKPOINT)
        self.slab.retire(sequence)
        effects += self._tier.cut(sequence)
        self._sequences.go(sequence, State.ENDED)
        if sequence.say_ended:
            effects.append(Send(sequence.dispatcher, Ended(sequence.place.request, sequence.place.attempt)))
        return effects

    def displace(self, sequence: Sequence) -> None:
        """Its slots hold nothing that counts, and no engine knows it: it starts over, from what is kept."""
        sequence.kv_tokens = sequence.answered
        if sequence.state is State.LEAVING:
            self._vacate(sequence)
            return
        self._leave(sequence)

    def _leave_slab(self, sequence: Sequence) -> list[Effect]:
        sequence.kv_tokens = sequence.computed
        cancelled = self._tier.cancel(sequence, Purpose.CHECKPOINT)
        if not sequence.spills:
            return [*cancelled, *self._tier.cut(sequence), *self._give_up_slots(sequence)]
        if not self._tier.usable or sequence.computed <= sequence.kept_tokens:
            return cancelled + self._give_up_slots(sequence)
        self._sequences.go(sequence, State.ASKING)
        return cancelled + self._ask_for_room(sequence)

    def _ask_for_room(self, sequence: Sequence) -> list[Effect]:
        tail = sequence.computed - sequence.kept_tokens
        figures = (
            Figure("tokens", sequence.computed),
            Figure("tail", tail),
            Figure("bytes", self._tier.size_bytes(tail)),
        )
        rejected = Rejected("recompute", f"{tail} tokens would be computed again")
        why = Why("spill", "host tier", figures, (rejected,))
        return self._tier.ask(sequence, sequence.computed, Purpose.SPILL, Priority.KV, why)

    def _spilled(self, move: PendingMove, done: MoveDone) -> list[Effect]:
        sequence = move.sequence
        self.slab.mark(sequence, Use.OWNED)
        is_ending = sequence.state is State.ENDING
        follows = sequence.kept_tokens == move.kept.region.start  # unless the host tier was lost meanwhile
        copied = done.status is MoveStatus.OK and follows and not is_ending
        effects = self._tier.commit(move, done.checksum) if copied else self._tier.abandon(move)
        return effects + (self.end(sequence) if is_ending else self._give_up_slots(sequence))

    def _give_up_slots(self, sequence: Sequence) -> list[Effect]:
        closed = Send(self._engine, Close(sequence.number))
        self.slab.retire(sequence)
        self._leave(sequence)
        return [closed]

    def _leave(self, sequence: Sequence) -> None:
        self._vacate(sequence)
        self._sequences.go(sequence, State.WAITING)

    def _vacate(self, sequence: Sequence) -> None:
        self.slab.release(sequence)
        sequence.computed = sequence.answered = 0
        sequence.preempted = True
        self._sequences.renumber(sequence)

    def _reused(self, sequence: Sequence) -> list[Effect]:
        """Tell what of a newcomer's text was here already."""
        if sequence.preempted:
            return []
        place, tokens = sequence.place, sequence.answered
        self.prefix_query_tokens_total += len(sequence.tokens)
        self.prefix_hit_tokens_total += tokens
        if not tokens:
            return []
        figures = (Figure("reused_tokens", tokens), Figure("tokens", len(sequence.tokens)))
        rejected = Rejected("compute all", f"the KV of the first {tokens} tokens is here")
        why = Why("prefix reuse", f"start at token {tokens}", figures, (rejected,))
        return [Send(sequence.dispatcher, Reused(place.request, place.attempt, tokens, why))]

    def _restore(self, sequence: Sequence) -> list[Effect]:
        """Bring back what is kept beyond the tokens whose KV is in the slab already."""
        effects: list[Effect] = []
        at = sequence.answered
        for kept in sequence.kept:
            if kept.region.start != at:
                continue
            at = kept.region.stop
            sequence.in_moves += 1
            extents = self.slab.extents(sequence, kept.region.start, kept.region.stop)
            effects += self._tier.copy_in(sequence, kept, extents)
        return effects

    def _came_back(self, move: PendingMove, done: MoveDone) -> list[Effect]:
        """One region is in the slab, or is not: then nothing behind it counts either."""
        sequence, region = move.sequence, move.kept.region
        if done.status is MoveStatus.OK and sequence.answered == region.start:
            sequence.answered = region.stop
            self._tier.restored_total += 1
            return []
        corrupt = done.status is MoveStatus.CORRUPT and sequence.state is not State.ENDING
        return self._tier.cut(sequence, region.start, corrupt)

    def _restored(self, sequence: Sequence) -> list[Effect]:
        sequence.answered = min(sequence.answered, len(sequence.tokens) - 1)
        restored = sequence.answered - sequence.computed
        sequence.computed = sequence.answered
        effects = [] if self._keeps else self._tier.cut(sequence)
        self.slab.mark(sequence, Use.OWNED)
        self._sequences.go(sequence, State.RUNNING)
        return effects + self._continued(sequence, restored)

    def _continued(self, sequence: Sequence, restored: int) -> list[Effect]:
        if not sequence.preempted and not sequence.is_claimed:
            return []
        if sequence.is_claimed:
            sequence.kv_tokens = len(sequence.tokens) - 1
            self.claimed_tokens_total += restored
        sequence.preempted = sequence.is_claimed = False
        reused = sequence.answered - restored
        recomputed = max(0, sequence.kv_tokens - sequence.answered)
        self.restored_tokens_total += restored
        self.recomputed_tokens_total += recomputed
        place = sequence.place
        figures = (
            Figure("restored_tokens", restored),
            Figure("reused_tokens", reused),
            Figure("recomputed_tokens", recomputed),
        )
        chosen = "restored from the host tier" if restored else "found in the slab" if reused else "recomputed"
        why = Why("resume", chosen, (*figures, Figure("free_slots", self.slab.room)))
        said = Continued(place.request, place.attempt, sequence.number, restored, recomputed, why)
        return [Send(sequence.dispatcher, said)]
