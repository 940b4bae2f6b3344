"""The steps of a modelled engine: a queue, the running step, and suspended rows that wait for `Resume`.

The results of a step come into being at its end. Rows that leave at a safepoint keep what was computed of them
(`SUSPEND`) or lose it (`DISCARD`); the other rows continue. Of moves it knows only whether one is pending or failed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.cost.models import BatchCounts
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import FinishReason, GroupKind, GroupRole, f32, i8, i32, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvAudit
from simulator.engine.sequences import SimulatedSequence, SimulatedSequences
from simulator.engine.timing import Timing
from simulator.engine.token_model import TokenModel

RUNNING = FinishReason.RUNNING


@dataclass(frozen=True, slots=True)
class StepDue:
    """The running step's time is up, unless another `turn` has begun since."""

    turn: int


@dataclass(slots=True)
class QueuedSimStep:
    """A step of which `rows` are to run: the share `left` (0 to 1) of it remains, after `layer` layers."""

    step: Step
    rows: list[int]
    left: float = 1.0
    layer: int = 0


@dataclass(slots=True)
class IterationResult:
    """The results of one iteration.

    The lists have an entry per row that sampled, except `dropped` (sequences whose rows did not run) and `failed`
    (sequences without a next token, because their logits are not finite). `computed` counts tokens.
    """

    step: int
    numbers: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    prefill_rows: int = 0
    decode_rows: int = 0
    computed: int = 0


class SimulatedStepRunner:
    """Owns the queue, the running step and the suspended rows.

    `busy_s`: seconds of steps so far. `slowness` multiplies the time of each step. `is_landing(move)`: the move is not
    answered. `spoiled(move)`: the sequence that the move failed to restore, if it failed.
    """

    def __init__(
        self,
        instance: Address,
        sequences: SimulatedSequences,
        timing: Timing,
        layers: int,
        vocabulary: int,
        voice: TokenModel,
        audit: KvAudit | None,
        is_landing: Callable[[int], bool],
        spoiled: Callable[[int], int | None],
    ) -> None:
        self.queue: deque[QueuedSimStep] = deque()
        self.busy_s = 0.0
        self.slowness = 1.0
        self._instance = instance
        self._sequences = sequences
        self._timing = timing
        self._layers = layers
        self._vocabulary = vocabulary
        self._voice = voice
        self._audit = audit
        self._is_landing = is_landing
        self._spoiled = spoiled
        self._is_running = False
        self._turn = 0
        self._began_s = 0.0
        self._idle_since_s = 0.0
        self._whole_s = 0.0
        self._owed_s = 0.0
        self._held_s = 0.0

    def add(self, now_s: float, step: Step) -> list[Effect]:
        """Append a step to the queue.

        Raises:
            ContractBroken: its columns contradict each other.
        """
        _check(step)
        self.queue.append(QueuedSimStep(step, list(range(len(step.sequence)))))
        return self.begin(now_s)

    def add_engine_delay(self, seconds: float) -> None:
        """Delay the end of the next iteration by `seconds`, for which the engine did other work."""
        self._owed_s += seconds

    def add_cpu_delay(self, seconds: float) -> None:
        """Delay the end of the running step, if there is one, by `seconds`: another process uses the engine's CPU."""
        if self._is_running:
            self._held_s += seconds

    def begin(self, now_s: float) -> list[Effect]:
        """Start the first queued step, unless a step runs or the first one waits for a move."""
        if self._is_running or not self.queue:
            return []
        queued = self.queue[0]
        for move in queued.step.after:
            if self._is_landing(move):
                return []
        self._whole_s = self._timing.step_s(self._batch(queued)) * self.slowness
        took_s, self._owed_s = self._whole_s * queued.left + self._owed_s, 0.0
        self._is_running = True
        self._held_s = 0.0
        self._turn += 1
        self._began_s = now_s
        return [After(took_s, StepDue(self._turn))]

    def on_due(self, now_s: float, due: StepDue) -> list[Effect]:
        """End the iteration: answer it and start the next one."""
        if due.turn != self._turn or not self._is_running:
            return []
        if self._held_s:
            held_s, self._held_s = self._held_s, 0.0
            return [After(held_s, due)]
        queued = self.queue[0]
        tally = self._compute(queued)
        self._is_running = False
        self.busy_s += now_s - self._began_s
        done = self._answer(tally, now_s)
        self._idle_since_s = now_s
        self.queue.popleft()
        return [Send(self._instance, done), *self.begin(now_s)]

    def progress(self, now_s: float) -> int:
        """Layers of the running iteration that are computed by now."""
        if not self._is_running or self._whole_s <= 0:
            return 0
        return min(self._layers - 1, int(self._layers * (now_s - self._began_s) / self._whole_s))

    def writing(self) -> list[int]:
        """The slots that queued steps write."""
        return [slot for queued in self.queue for row in row_slots(queued.step) for slot in row]

    # --- one iteration ---

    def _batch(self, queued: QueuedSimStep) -> BatchCounts:
        """The counts of the iteration's work, for the timing."""
        prefill_rows = new = prefix = squares = decode_rows = context = 0
        step, sequences = queued.step, self._sequences.by_number
        numbers, starts, stops = step.sequence, step.start, step.stop
        for row in queued.rows:
            sequence = sequences.get(numbers[row])
            if sequence is None or sequence.ended:
                continue
            start, stop = starts[row], stops[row]
            tokens = stop - start
            if tokens == 1 and start >= sequence.prompt_tokens:
                decode_rows += 1
                context += stop
            else:
                prefill_rows += 1
                new += tokens
                prefix += tokens * start
                squares += tokens * tokens
        return BatchCounts(prefill_rows, new, prefix, squares, decode_rows, context)

    def _compute(self, queued: QueuedSimStep) -> IterationResult:
        """Compute all rows. Hot path: it makes no object per row or token."""
        step = queued.step
        spoiled = [number for move in step.after if (number := self._spoiled(move)) is not None]
        slots = row_slots(step) if self._audit is not None else None
        tally = IterationResult(step.step)
        sequences, samples = self._sequences.by_number, step.sample
        for row in queued.rows:
            number = step.sequence[row]
            sequence = sequences.get(number)
            if sequence is None or sequence.ended or number in spoiled:
                tally.dropped.append(number)
                if sequence is None and slots is not None and self._audit is not None:
                    self._audit.may_have_written(slots[row])
                continue
            start, stop = step.start[row], step.stop[row]
            if not 0 <= start < stop <= sequence.length or start > sequence.kv_tokens:
                raise _broken(sequence, start, stop)
            sequence.kv_tokens = stop
            if slots is not None:
                self._audit_row(queued, row, number, slots[row])
            if stop - start == 1 and start >= sequence.prompt_tokens:
                tally.decode_rows += 1
            else:
                tally.prefill_rows += 1
            tally.computed += stop - start
            if samples[row]:
                self._sample(sequence, stop, tally)
        return tally

    def _audit_row(self, queued: QueuedSimStep, row: int, number: int, slots: list[int]) -> None:
        """Report to the audit which slots a row writes."""
        start, stop = queued.step.start[row], queued.step.stop[row]
        if self._audit is not None:
            self._audit.computed(number, start, stop, slots[: stop - start])

    def _sample(self, sequence: SimulatedSequence, stop: int, tally: IterationResult) -> None:
        if stop != sequence.length:
            raise ContractBroken(f"sequence {sequence.number}: samples after {stop} of {sequence.length} tokens")
        if sequence.fails:
            sequence.ended = True
            tally.failed.append(sequence.number)
            return
        voice = self._voice
        token = voice.next_token(sequence.state, sequence.seed, stop, self._vocabulary)
        sequence.length = stop + 1
        sequence.fails = token == self._sequences.failing_token
        if self._audit is not None:
            sequence.state = voice.advance(sequence.state, token)
            self._audit.sampled(sequence.number, token)
        finish = RUNNING
        if sequence.stop_ids and token in sequence.stop_ids:
            finish = FinishReason.STOP
        elif stop + 1 >= sequence.tokens_max:
            finish = FinishReason.LENGTH
        if finish is not RUNNING:
            sequence.ended = True
        tally.numbers.append(sequence.number)
        tally.tokens.append(token)
        tally.finishes.append(finish)
        tally.tops.append(sequence.logprobs)

    def _answer(self, tally: IterationResult, now_s: float) -> StepDone:
        top_token, top_logprob = i32(), f32()
        for token, tops in zip(tally.tokens, tally.tops, strict=True) if any(tally.tops) else ():
            top_token.extend((token + other) % self._vocabulary for other in range(tops))
            top_logprob.extend(-float(other) for other in range(tops))
        return StepDone(
            tally.step,
            i64(tally.numbers),
            i32(tally.tokens),
            f32([-(token % 8) / 8 for token in tally.tokens]),
            i8(tally.finishes),
            i64(tally.dropped),
            i32(tally.tops) if top_token else i32(),
            top_token,
            top_logprob,
            tally.prefill_rows,
            tally.decode_rows,
            tally.computed,
            now_s - self._began_s,
            self._began_s - self._idle_since_s,
            i64(tally.failed),
        )


def _broken(sequence: SimulatedSequence, start: int, stop: int) -> ContractBroken:
    if start > sequence.kv_tokens:
        return ContractBroken(f"sequence {sequence.number}: token {start} is computed, KV ends at {sequence.kv_tokens}")
    return ContractBroken(f"sequence {sequence.number}: {start} to {stop} of {sequence.length} tokens")


def _check(step: Step) -> None:
    """The checks that need no state of sequences."""
    rows = len(step.sequence)
    if not rows or len(set(step.sequence)) != rows:
        raise ContractBroken(f"step {step.step} names {rows} sequences, {len(set(step.sequence))} different ones")
    given = [0] * rows
    for row, length in zip(step.extent_row, step.extent_length, strict=True):
        given[row] += length
    for row, (start, stop) in enumerate(zip(step.start, step.stop, strict=True)):
        if given[row] < stop - start:
            raise ContractBroken(f"step {step.step}: row {row} writes {stop - start} tokens into {given[row]} slots")


def is_unsupported(step: Step) -> bool:
    """Whether the step needs what this model lacks: members of a group, retention, pushes, stripes."""
    with_others = step.group is not GroupKind.LOCAL or step.part is not GroupRole.LOCAL or bool(step.peers)
    return with_others or step.keep is not None or step.push is not None or any(one != 1 for one in step.stride)


def row_slots(step: Step) -> list[list[int]]:
    """The slots of each row, by position."""
    spans: list[list[int]] = [[] for _ in step.sequence]
    for row, start, length in zip(step.extent_row, step.extent_start, step.extent_length, strict=True):
        spans[row].extend(range(start, start + length))
    return spans
