"""What the rows of a modelled engine's step compute: KV that the audit is told of, and the next tokens."""

from collections.abc import Callable

from dunlin.cost.group_steps import GroupWork
from dunlin.cost.models import BatchCounts
from dunlin.messages.engine import Step
from dunlin.messages.types import FinishReason
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvAudit
from simulator.engine.prompt_scores import score
from simulator.engine.sequences import SimulatedSequence, SimulatedSequences
from simulator.engine.stepping.decode_batch import SimulatedDecodeBatch, finish_of
from simulator.engine.stepping.group_counts import count_group_work
from simulator.engine.stepping.group_steps import GroupSteps, SplitSpans
from simulator.engine.stepping.step_queue import QueuedSimStep, RowColumns, row_positions, row_slots
from simulator.engine.stepping.step_results import IterationResult
from simulator.engine.token_model import TokenModel
from simulator.engine.transit_rooms import SimulatedTransitRooms

RUNNING = FinishReason.RUNNING


class RowComputer:
    """Counts and computes the rows of steps. `spoiled(move)`: the sequence that the move failed to restore, if any."""

    def __init__(
        self,
        sequences: SimulatedSequences,
        vocabulary: int,
        voice: TokenModel,
        audit: KvAudit | None,
        spoiled: Callable[[int], int | None],
        rooms: SimulatedTransitRooms,
        layers: int,
        group: GroupSteps,
    ) -> None:
        self._sequences = sequences
        self._vocabulary = vocabulary
        self._voice = voice
        self._audit = audit
        self._spoiled = spoiled
        self._rooms = rooms
        self._layers = layers
        self._group = group
        self._decode_batch: SimulatedDecodeBatch | None = None

    def count(self, queued: QueuedSimStep) -> BatchCounts:
        """The counts of the step's work, for the timing."""
        if (batch := self._repeated(queued)) is not None:
            return batch.counts(queued)
        prefill_rows = new = prefix = squares = decode_rows = context = sampled_rows = 0
        step, sequences, closing = queued.step, self._sequences.by_number, self._sequences.closing
        numbers, starts, stops = step.sequence, step.start, step.stop
        strides = step.stride if isinstance(step, Step) else ()
        for row in queued.rows:
            sequence = sequences.get(numbers[row]) or closing[numbers[row]]
            start, stop = starts[row], stops[row]
            tokens = len(range(start, stop, strides[row])) if strides else stop - start
            if sequence.is_sampled and step.sample[row]:
                sampled_rows += 1
            if tokens == 1 and start >= sequence.prompt_tokens:
                decode_rows += 1
                context += stop
            else:
                prefill_rows += 1
                new += tokens
                prefix += tokens * start
                squares += tokens * tokens
        return BatchCounts(prefill_rows, new, prefix, squares, decode_rows, context, sampled_rows)

    def group_work(self, step: Step, queued: QueuedSimStep) -> GroupWork:
        """The counts of a step with peers, for the timing."""
        sequences, closing = self._sequences.by_number, self._sequences.closing

        def prompt_tokens(number: int) -> int:
            return (sequences.get(number) or closing[number]).prompt_tokens

        return count_group_work(step, queued.rows, queued.is_serving, prompt_tokens, self._group.is_near)

    def compute(self, queued: QueuedSimStep) -> IterationResult:
        """Compute all rows. Hot path: it makes no object per row or token.

        Raises:
            ContractBroken: a row names tokens that are not known, or leaves a gap in the KV.
        """
        if (batch := self._repeated(queued)) is not None:
            return batch.decode(queued, self._voice, self._vocabulary)
        step = queued.step
        self._learn(queued)
        slots = row_slots(step) if self._audit is not None else None
        tally = IterationResult(step.step, queued.left, queued.dropped)
        splits = self._group.spans(step) if isinstance(step, Step) and step.span_row else {}
        sequences, closing, samples = self._sequences.by_number, self._sequences.closing, step.sample
        for row in queued.rows:
            number = step.sequence[row]
            sequence = sequences.get(number) or closing[number]
            if splits and row in splits and splits[row].stripes and isinstance(step, Step):
                self._ring_row(step, row, sequence, splits[row], tally)
                continue
            start, stop = step.start[row], step.stop[row]
            split = splits.get(row) if splits else None
            if not 0 <= start < stop <= sequence.length or (
                start > sequence.kv_tokens and not _is_covered(split, sequence.kv_tokens, start)
            ):
                raise _broken(sequence, start, stop)
            sequence.kv_tokens = stop
            if sequence.scores is not None and (queued.layers is None or queued.layers.stop == self._layers):
                tally.scores = score(tally.scores, sequence.number, sequence.scores, start, stop, self._vocabulary)
            if slots is not None:
                self._audit_row(queued, row, number, slots[row], split)
            if stop - start == 1 and start >= sequence.prompt_tokens:
                tally.decode_rows += 1
            else:
                tally.prefill_rows += 1
            tally.computed += stop - start
            if samples[row]:
                self._sample(sequence, stop, tally)
        if queued.layers is not None:
            self._pass_hidden(queued, tally)
        self._decode_batch = self._batch_of(queued, tally)
        return tally

    def _repeated(self, queued: QueuedSimStep) -> SimulatedDecodeBatch | None:
        """The batch of the last step that was computed, if this one is of the same; None: look at each row."""
        batch = self._decode_batch
        if batch is None or batch.has_ended or not queued.is_repeat or self._sequences.changes != batch.changes:
            return None
        step = queued.step
        is_same = step.sequence is batch.numbers and step.sample is batch.samples
        is_same = is_same and len(queued.rows) == len(batch.sequences)
        return batch if is_same and not step.after and not queued.is_resumed and queued.layers is None else None

    def _batch_of(self, queued: QueuedSimStep, tally: IterationResult) -> SimulatedDecodeBatch | None:
        """The rows of a step, if it was a decode batch that says no more than its tokens and has not ended in part."""
        numbers = queued.step.sequence
        if self._audit is not None or queued.layers is not None or self._sequences.failing_token is not None:
            return None
        if not len(numbers) == tally.decode_rows == len(tally.numbers) or any(tally.tops) or any(tally.finishes):
            return None
        by_number = self._sequences.by_number
        sequences = [by_number[number] for number in numbers if number in by_number]
        if len(sequences) != len(numbers) or any(sequence.scores is not None for sequence in sequences):
            return None
        return SimulatedDecodeBatch(numbers, queued.step.sample, sequences, self._sequences.changes)

    def go_on(self, queued: QueuedSimStep) -> None:
        """A step that was suspended goes on: the slots of its rows must be as they were left."""
        if self._audit is not None:
            slots = row_slots(queued.step)
            for row in queued.rows:
                count = len(row_positions(queued.step, row)) if isinstance(queued.step, Step) else 0
                self._audit.resumed(queued.step.sequence[row], slots[row][:count])

    def drop_gone(self, queued: QueuedSimStep) -> None:
        """Drop the rows of a step that begins whose sequences ended, were closed, or lack what a transfer was to bring.

        A sequence that is closed later is computed to the end of the step, as a live engine does.
        """
        if self._repeated(queued) is not None:
            return
        numbers, sequences = queued.step.sequence, self._sequences.by_number
        spoiled = self._spoiled_by(queued.step)
        gone = [
            row
            for row in queued.rows
            if (sequence := sequences.get(numbers[row])) is None or sequence.ended or numbers[row] in spoiled
        ]
        if gone:
            queued.rows = [row for row in queued.rows if row not in gone]
            queued.dropped += [numbers[row] for row in gone]

    def _spoiled_by(self, step: RowColumns) -> list[int]:
        return [number for move in step.after if (number := self._spoiled(move)) is not None]

    def _ring_row(
        self, step: Step, row: int, sequence: SimulatedSequence, split: SplitSpans, tally: IterationResult
    ) -> None:
        """Compute a stripe, and take in the others."""
        stripe = row_positions(step, row)
        covered = split.covered(stripe)
        is_known = covered.start <= sequence.kv_tokens or split.covers(sequence.kv_tokens, covered.start)
        if not is_known or covered.stop > sequence.length:
            raise _broken(sequence, covered.start, covered.stop)
        sequence.kv_tokens = covered.stop
        if self._audit is not None:
            is_whole = self._group.check(step, sequence.number, split, covered.start)
            slots = row_slots(step)[row][: len(stripe)]
            self._audit.kept(sequence.number, covered, (stripe, slots), _kept(step, row), is_whole)
        tally.prefill_rows += 1
        tally.computed += len(stripe)
        if step.sample[row]:
            self._sample(sequence, stripe[-1] + 1, tally)

    def _audit_row(
        self, queued: QueuedSimStep, row: int, number: int, slots: list[int], split: SplitSpans | None
    ) -> None:
        """Report to the audit which slots a row writes."""
        start, stop = queued.step.start[row], queued.step.stop[row]
        if self._audit is not None:
            if queued.is_resumed:
                self._audit.resumed(number, slots[: stop - start])
            layers = frozenset(queued.layers) if queued.layers is not None else None
            if split is not None and isinstance(queued.step, Step):
                self._group.check(queued.step, number, split, start)
            self._audit.computed(number, start, stop, slots[: stop - start], layers, split is not None)

    def _pass_hidden(self, queued: QueuedSimStep, tally: IterationResult) -> None:
        """Hidden states of a step over some of the layers: those before it, and those that it leaves."""
        step = queued.step
        if not isinstance(step, Step):
            return
        rows = frozenset((step.sequence[row], step.start[row], step.stop[row]) for row in queued.rows)
        if step.hidden_in and step.layer_start:
            self._rooms.read(step.hidden_in, rows)
        if queued.layers is not None and queued.layers.stop < self._layers:
            closed = self._sequences.closing
            self._rooms.write(step.hidden_out, frozenset(row for row in rows if row[0] not in closed))
        elif step.hidden_out:
            for number, token in zip(tally.numbers, tally.tokens, strict=True):
                if (sequence := self._sequences.by_number.get(number)) is not None:  # not closed meanwhile
                    self._rooms.tell(step.hidden_out, number, sequence.length - 1, token)

    def _learn(self, queued: QueuedSimStep) -> None:
        """The first stage of a pipeline learns the tokens that the last one sampled."""
        step = queued.step
        if queued.layers is None or not isinstance(step, Step) or not step.hidden_in or step.layer_start:
            return
        for number in step.sequence:
            sequence, found = self._sequences.by_number.get(number), self._rooms.learn(step.hidden_in, number)
            if sequence is not None and found is not None and found[0] == sequence.length and not sequence.ended:
                self._append(sequence, found[1])

    def _sample(self, sequence: SimulatedSequence, stop: int, tally: IterationResult) -> None:
        if stop != sequence.length:
            raise ContractBroken(f"sequence {sequence.number}: samples after {stop} of {sequence.length} tokens")
        if sequence.fails:
            sequence.ended = True
            tally.failed.append(sequence.number)
            return
        voice = self._voice
        token = voice.next_token(sequence.state, sequence.seed, stop, self._vocabulary)
        finish = self._append(sequence, token)
        tally.numbers.append(sequence.number)
        tally.tokens.append(token)
        tally.finishes.append(finish)
        tally.tops.append(sequence.logprobs)

    def _append(self, sequence: SimulatedSequence, token: int) -> FinishReason:
        """One more token is known; returns whether it was the last."""
        sequence.length += 1
        sequence.fails = token == self._sequences.failing_token
        if self._audit is not None:
            sequence.state = self._voice.advance(sequence.state, token)
            self._audit.sampled(sequence.number, token)
        finish = finish_of(sequence, token)
        if finish is not RUNNING:
            sequence.ended = True
        return finish


def _kept(step: Step, row: int) -> list[tuple[range, int]]:
    """What stays of a ring's row: (tokens, first slot)."""
    keep = step.keep
    if keep is None:
        return []
    columns = zip(keep.row, keep.start, keep.stop, keep.slot, strict=True)
    return [(range(start, stop), slot) for at, start, stop, slot in columns if at == row]


def _is_covered(split: SplitSpans | None, start: int, stop: int) -> bool:
    """Whether the spans at peers name all tokens `[start, stop)`."""
    return split is not None and split.covers(start, stop)


def _broken(sequence: SimulatedSequence, start: int, stop: int) -> ContractBroken:
    if start > sequence.kv_tokens:
        return ContractBroken(f"sequence {sequence.number}: token {start} is computed, KV ends at {sequence.kv_tokens}")
    return ContractBroken(f"sequence {sequence.number}: {start} to {stop} of {sequence.length} tokens")
