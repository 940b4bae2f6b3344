"""The lifecycle of a sequence: it starts, is preempted, is restored, and ends. One method per transition.

Keeps slots, engine, host tier and dispatcher consistent with the state. Knows no batch and no queue's order.
"""

from collections.abc import Collection
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Continued, Ended, Failed, Poisoned, Preempted, Returned, Reused
from dunlin.messages.engine import Close, Open, TransferDone
from dunlin.messages.types import Figure, HostRegion, Priority, RejectedOption, TransferStatus, Why, i32, i64
from dunlin.policies.preemption import PreemptionCandidate, PreemptionMode, spill, swap
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.kv_cache import KvCache
from services.instance.kv.residency import SlotUse
from services.instance.kv.slot_table import Owner, SlotTable
from services.instance.kv.tickets import HostReservation, PendingTransfer, TransferPurpose
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.crash_suspects import poison_reason
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

_IN_USE = (SequenceState.SPILLING, SequenceState.RESTORING, SequenceState.SPREAD)
"""States in which others than steps of this engine use slots of the sequence."""


class SequenceLifecycle:
    """Carries the transitions out. `kv_cache` is replaced after each start of an engine without valid KV.

    `keeps`: a sequence that was restored leaves its regions in the host tier, as checkpoints. `swaps`: no step starts
    while KV of a preempted sequence is copied.
    """

    def __init__(
        self,
        engine: Address,
        sequences: SequenceTable,
        host_cache: HostCacheClient,
        steps: StepLedger,
        preemption_mode: PreemptionMode = spill,
        *,
        keeps: bool = False,
    ) -> None:
        self.kv_cache = KvCache()
        self.preemptions_total = 0
        self.restored_tokens_total = 0
        self.recomputed_tokens_total = 0
        self.prefix_hit_tokens_total = 0
        self.prefix_query_tokens_total = 0
        self.claimed_tokens_total = 0
        self.poisoned_total = 0
        self._engine = engine
        self._sequences = sequences
        self._host_cache = host_cache
        self._steps = steps
        self._preemption_mode = preemption_mode
        self.swaps = preemption_mode is swap
        self._keeps_checkpoints = keeps

    @property
    def slot_table(self) -> SlotTable:
        """The slot table of the KV cache."""
        return self.kv_cache.slot_table

    def start(self, sequence: Sequence, slots: int) -> list[Effect]:
        """Give a waiting sequence `slots` slots (the caller knows that they are free) and let it run, or restore it."""
        reused = self.kv_cache.attach_prefix(sequence)
        granted = self.kv_cache.allocate(sequence, slots - reused)
        assert granted, f"{sequence.name}: {slots} slots of {self.kv_cache!r}"
        sequence.issued = sequence.valid = reused
        opened = self.open_in_engine(sequence)
        moves = self._start_restore(sequence)
        if not moves:
            self._sequences.transition(sequence, SequenceState.RUNNING)
            return [opened, *self._report_prefix_hit(sequence), *self._report_continued(sequence, 0)]
        self._sequences.transition(sequence, SequenceState.RESTORING)
        self.kv_cache.set_use(sequence, SlotUse.MOVING)
        return [opened, *self._report_prefix_hit(sequence), *moves]

    def open_in_engine(self, sequence: Sequence) -> Send:
        """Open the sequence in the engine, with the KV of its first tokens that lies in the KV cache."""
        place, extents = sequence.place, self.kv_cache.extents(sequence, 0, sequence.valid)
        opened = Open(
            sequence.number,
            i32(sequence.tokens),
            place.prompt_tokens,
            place.max_tokens,
            place.sampling,
            place.stop_ids,
            i64([first for first, _ in extents]),
            i64([length for _, length in extents]),
            scored=sequence.scored,
            adapter=place.adapter,
        )
        return Send(self._engine, opened)

    def preempt(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Take a running or parked sequence's slots, as soon as no step uses them."""
        self.preemptions_total += 1
        discarded = self._steps.discard([sequence])
        self._sequences.transition(sequence, SequenceState.DRAINING)
        choice = self._preemption_mode(PreemptionCandidate(sequence.issued, sequence.kept_tokens))
        sequence.spills_kv = choice.spills
        if not choice.spills:
            why = replace(why, rejected=(*why.rejected, choice.rejected))
        place = sequence.place
        said = Send(sequence.dispatcher, Preempted(place.request, place.attempt, why))
        return [*discarded, said, *self.complete_deferred(sequence)]

    def cancel_restore(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Take the slots of a sequence that is being restored, as soon as the engine writes none; it waits again.

        What is kept of it in the host tier stays.
        """
        sequence.is_restore_cancelled = True
        said = Send(sequence.dispatcher, Preempted(sequence.place.request, sequence.place.attempt, why))
        return [said, *self._host_cache.cancel_restores(sequence)]

    def on_rows_left(self, sequence: Sequence) -> list[Effect]:
        """An interrupt that named the sequence was answered: it is parked if its row is, or goes on.

        A row of a sequence that does not run any more is not kept.
        """
        discarded: list[Effect] = []
        if self._steps.is_parked(sequence) and sequence.state is SequenceState.RUNNING:
            self._sequences.transition(sequence, SequenceState.PARKED)
        elif sequence.state not in (SequenceState.PARKED, SequenceState.ENDING):  # the `Close` of the latter is sent
            discarded = self._steps.discard([sequence])
        return discarded + self.complete_deferred(sequence)

    def unpark(self, sequence: Sequence) -> list[Effect]:
        """Discard the parked row of a sequence, if it has one: it runs on from its valid KV."""
        return self._steps.discard([sequence])

    def complete_deferred(self, sequence: Sequence) -> list[Effect]:
        """Complete the transition that waited for outstanding steps, if none names the sequence any more."""
        if sequence.in_steps > 0:
            return []
        if sequence.state is SequenceState.ENDING:
            return self.end(sequence)
        if sequence.state is SequenceState.DRAINING:
            return self._release_or_spill(sequence)
        return []

    def start_copy_out(self, reservation: HostReservation, host: HostRegion) -> list[Effect]:
        """The kvstore reserved room: start the spill of the sequence."""
        sequence = reservation.sequence
        self._sequences.transition(sequence, SequenceState.SPILLING)
        extents = self.kv_cache.extents(sequence, reservation.region.start, reservation.region.stop)
        self.kv_cache.set_use(sequence, SlotUse.MOVING)
        sequence.in_moves += 1
        return self._host_cache.copy_out(reservation, host, extents, Priority.KV)

    def retry_spill(self, reservation: HostReservation) -> list[Effect]:
        """Checkpoints were released: ask for room once more."""
        return self._request_spill(reservation.sequence)

    def spill_refused(self, reservation: HostReservation) -> list[Effect]:
        """The kvstore has no room, or does not answer: free the slots without a spill."""
        return self._close_and_requeue(reservation.sequence)

    def on_move_done(self, move: PendingTransfer, done: TransferDone) -> list[Effect]:
        """A region copy that a sequence waits for ended."""
        sequence = move.sequence
        sequence.in_moves -= 1
        if move.purpose is TransferPurpose.SPILL:
            return self._spill_done(move, done)
        effects = self._region_restored(move, done)
        if sequence.in_moves:
            return effects
        if sequence.state is SequenceState.ENDING:
            return effects + self.end(sequence)
        if sequence.is_restore_cancelled:
            return effects + self._close_and_requeue(sequence)
        return effects + self._restore_done(sequence)

    def on_host_cache_lost(self, kvstore: Address | None) -> list[Effect]:
        """The kvstore is gone: the regions kept there are lost."""
        effects: list[Effect] = []
        for sequence in self._sequences:
            if sequence.kept and sequence.kept[0].keeper == kvstore:
                effects += self._host_cache.truncate(sequence)
        return effects

    def on_regions_revoked(self, names: Collection[tuple[int, int]]) -> list[Effect]:
        """Regions, by (handle, generation), were claimed for another attempt: nothing from there on is kept here."""
        effects: list[Effect] = []
        for sequence in self._sequences:
            lost = [kept for kept in sequence.kept if (kept.host.handle, kept.host.generation) in names]
            if lost:
                sequence.kept = [kept for kept in sequence.kept if kept not in lost]
                effects += self._host_cache.truncate(sequence, lost[0].region.start)
        return effects

    def start_migrated(self, sequence: Sequence, owner: Owner, tokens: int) -> list[Effect]:
        """Let a waiting sequence run with the slots of `owner`, where the KV of its first `tokens` tokens lies already.

        The last token is computed in any case: its step samples the next one.
        """
        self.kv_cache.adopt_reserved(sequence, owner)
        held = min(tokens, sequence.reusable_most)
        sequence.issued = sequence.valid = held
        self._sequences.transition(sequence, SequenceState.RUNNING)
        return [self.open_in_engine(sequence)]

    def resume(self, sequence: Sequence) -> None:
        """The outgoing migration was aborted: the sequence runs, or waits as before."""
        held = self.kv_cache.held_positions(sequence)
        self._sequences.transition(sequence, SequenceState.RUNNING if held else SequenceState.WAITING)

    def stop(self, sequence: Sequence) -> list[Effect]:
        """Stop a sequence whose tokens are not wanted: it ends, at once or when its slots are out of use."""
        if sequence.state is SequenceState.ENDING:
            return []
        busy = sequence.in_steps > 0 or sequence.state in _IN_USE
        if not busy:
            self._host_cache.cancel_requests(sequence)
            return self.end(sequence)
        self._sequences.transition(sequence, SequenceState.ENDING)
        return [] if sequence.is_spread else [Send(self._engine, Close(sequence.number))]

    def fail(self, sequence: Sequence) -> list[Effect]:
        """End it: its next token cannot be chosen, and no other instance would find another."""
        place = sequence.place
        chosen = f"the model's logits after token {len(sequence.tokens)} are not finite"
        rejected = RejectedOption("dispatch it again", "the same tokens give the same logits")
        why = Why("engine", chosen, (Figure("tokens", len(sequence.tokens)),), (rejected,))
        return [Send(sequence.dispatcher, Failed(place.request, place.attempt, why)), *self.stop(sequence)]

    def say_poisoned(self, sequence: Sequence) -> Effect:
        """Its dispatcher is told that the sequence is poison."""
        self.poisoned_total += 1
        place = sequence.place
        return Send(sequence.dispatcher, Poisoned(place.request, place.attempt, poison_reason(sequence)))

    def say_continued(
        self, sequence: Sequence, why: Why, *, restored: int = 0, recomputed: int = 0, revived: int = 0
    ) -> Effect:
        """Its dispatcher is told that the attempt runs again, the tokens whose KV came back or is computed again, and
        of what it is suspected.
        """
        place, counts = sequence.place, (restored, recomputed, why, revived)
        suspected = sequence.suspicion, sequence.trial_stop
        said = Continued(place.request, place.attempt, sequence.number, *counts, *suspected)
        return Send(sequence.dispatcher, said)

    def return_to_dispatcher(self, sequence: Sequence, why: Why) -> list[Effect]:
        """Return an accepted attempt to its dispatcher, which places it anew."""
        place = sequence.place
        returned = Send(sequence.dispatcher, Returned(place.request, place.attempt, why, sequence.suspicion))
        return [returned, *self.stop(sequence)]

    def end(self, sequence: Sequence) -> list[Effect]:
        """End a sequence whose slots no step and no copy uses, here or at the members of a group."""
        known = sequence.state not in (SequenceState.WAITING, SequenceState.ENDING)
        effects: list[Effect] = [Send(self._engine, Close(sequence.number))] if known else []
        if not sequence.is_spread:
            self._steps.forget(sequence)
            effects += self._host_cache.cancel_copies(sequence)
            self.kv_cache.release_to_prefix_cache(sequence)
            effects += self._host_cache.truncate(sequence)
        self._sequences.transition(sequence, SequenceState.ENDED)
        if sequence.notify_ended:
            effects.append(Send(sequence.dispatcher, Ended(sequence.place.request, sequence.place.attempt)))
        return effects

    def discard_kv(self, sequence: Sequence) -> None:
        """Discard the KV of a sequence that no engine knows: it starts again from its kept regions."""
        sequence.kv_tokens = sequence.valid
        if sequence.state is SequenceState.LEAVING:
            self._release_slots(sequence)
            return
        self._requeue(sequence)

    def _release_or_spill(self, sequence: Sequence) -> list[Effect]:
        sequence.kv_tokens = sequence.valid
        cancelled = self._host_cache.cancel_copies(sequence)
        if not sequence.spills_kv:
            return [*cancelled, *self._host_cache.truncate(sequence), *self._close_and_requeue(sequence)]
        if not self._host_cache.usable or sequence.valid <= sequence.kept_tokens:
            return cancelled + self._close_and_requeue(sequence)
        self._sequences.transition(sequence, SequenceState.ASKING)
        return cancelled + self._request_spill(sequence)

    def _request_spill(self, sequence: Sequence) -> list[Effect]:
        tail = sequence.valid - sequence.kept_tokens
        figures = (
            Figure("tokens", sequence.valid),
            Figure("tail", tail),
            Figure("bytes", self._host_cache.size_bytes(tail)),
        )
        rejected = RejectedOption("recompute", f"{tail} tokens would be computed again")
        why = Why("spill", "host tier", figures, (rejected,))
        return self._host_cache.reserve_region(sequence, sequence.valid, TransferPurpose.SPILL, Priority.KV, why)

    def _spill_done(self, move: PendingTransfer, done: TransferDone) -> list[Effect]:
        sequence = move.sequence
        self.kv_cache.set_use(sequence, SlotUse.OWNED)
        is_ending = sequence.state is SequenceState.ENDING
        follows = sequence.kept_tokens == move.kept.region.start  # unless the host tier was lost meanwhile
        copied = done.status is TransferStatus.OK and follows and not is_ending
        effects = self._host_cache.commit(move, done.checksum) if copied else self._host_cache.release_uncommitted(move)
        return effects + (self.end(sequence) if is_ending else self._close_and_requeue(sequence))

    def _close_and_requeue(self, sequence: Sequence) -> list[Effect]:
        closed = Send(self._engine, Close(sequence.number))
        self.kv_cache.release_to_prefix_cache(sequence)
        self._requeue(sequence)
        return [closed]

    def _requeue(self, sequence: Sequence) -> None:
        self._release_slots(sequence)
        self._sequences.transition(sequence, SequenceState.WAITING)

    def _release_slots(self, sequence: Sequence) -> None:
        self.kv_cache.release(sequence)
        sequence.issued = sequence.valid = 0
        sequence.preempted = True
        sequence.is_restore_cancelled = False
        self._sequences.renumber(sequence)

    def _report_prefix_hit(self, sequence: Sequence) -> list[Effect]:
        """Report how much of a new sequence's text was in the prefix cache."""
        if sequence.preempted:
            return []
        place, tokens = sequence.place, sequence.valid
        self.prefix_query_tokens_total += len(sequence.tokens)
        self.prefix_hit_tokens_total += tokens
        if not tokens:
            return []
        figures = (Figure("reused_tokens", tokens), Figure("tokens", len(sequence.tokens)))
        rejected = RejectedOption("compute all", f"the KV of the first {tokens} tokens is here")
        why = Why("prefix reuse", f"start at token {tokens}", figures, (rejected,))
        return [Send(sequence.dispatcher, Reused(place.request, place.attempt, tokens, why))]

    def _start_restore(self, sequence: Sequence) -> list[Effect]:
        """Restore the kept regions beyond the tokens whose KV is in the KV cache already."""
        effects: list[Effect] = []
        start = stop = sequence.valid
        sequence.restore_failed = False
        for kept in sequence.kept:
            if kept.region.start == stop:
                start, stop = stop, kept.region.stop
            elif (kept.region.start, kept.region.stop) != (start, stop):
                continue
            sequence.in_moves += 1
            extents = self.kv_cache.extents(sequence, start, stop)
            effects += self._host_cache.copy_in(sequence, kept, extents)
        return effects

    def _region_restored(self, move: PendingTransfer, done: TransferDone) -> list[Effect]:
        """One region was restored, or failed: then no region behind it counts either. A span counts when all regions
        of it, which have different layers, are restored.
        """
        sequence, region = move.sequence, move.kept.region
        if done.status is TransferStatus.OK and sequence.valid == region.start and not sequence.restore_failed:
            self._host_cache.restored_total += 1
            if not self._host_cache.is_restoring(sequence, region.start):
                sequence.valid = region.stop
            return []
        sequence.restore_failed = True
        if done.status is TransferStatus.CANCELLED:
            return []
        corrupt = done.status is TransferStatus.CORRUPT and sequence.state is not SequenceState.ENDING
        return self._host_cache.truncate(sequence, region.start, corrupt)

    def _restore_done(self, sequence: Sequence) -> list[Effect]:
        sequence.valid = min(sequence.valid, len(sequence.tokens) - 1)
        restored = sequence.valid - sequence.issued
        sequence.issued = sequence.valid
        effects = [] if self._keeps_checkpoints else self._host_cache.truncate(sequence)
        self.kv_cache.set_use(sequence, SlotUse.OWNED)
        self._sequences.transition(sequence, SequenceState.RUNNING)
        return effects + self._report_continued(sequence, restored)

    def _report_continued(self, sequence: Sequence, restored: int) -> list[Effect]:
        if not sequence.preempted and not sequence.is_claimed:
            return []
        had = sequence.kv_tokens
        if sequence.is_claimed:  # an attempt before it had KV, at another instance
            had = len(sequence.tokens) - 1
            self.claimed_tokens_total += restored
        sequence.preempted = sequence.is_claimed = False
        reused = sequence.valid - restored
        recomputed = max(0, had - sequence.valid)
        self.restored_tokens_total += restored
        self.recomputed_tokens_total += recomputed
        figures = (
            Figure("restored_tokens", restored),
            Figure("reused_tokens", reused),
            Figure("recomputed_tokens", recomputed),
        )
        chosen = "restored from the host tier" if restored else "reused from the KV cache" if reused else "recomputed"
        why = Why("resume", chosen, (*figures, Figure("free_slots", self.kv_cache.available_slots)))
        return [self.say_continued(sequence, why, restored=restored, recomputed=recomputed)]
