"""What the answer to a step means for its rows, and the counters of what was answered. Knows no queue of steps."""

from collections.abc import Sequence as Indices
from dataclasses import dataclass, field

from dunlin.messages.engine import StepDone
from dunlin.messages.types import I64, FinishReason, i64
from services.instance.scheduling.step_rows import SteadyDecodeBatch, StepRows
from services.instance.sequence.sequence import Sequence


@dataclass(slots=True)
class StepTotals:
    """Counters of answered steps. `s_per_token` is the engine's time per computed token, averaged lately; seconds."""

    done: int = 0
    mixed: int = 0
    multi_row: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    s_per_token: float = 0.0

    def count(self, done: StepDone) -> None:
        """Count one answer."""
        self.done += 1
        self.mixed += done.prefill_rows > 0 and done.decode_rows > 0
        self.multi_row += done.prefill_rows + done.decode_rows >= 2
        self.tokens += len(done.token)
        self.prefill_tokens += done.tokens_computed - done.decode_rows
        if done.tokens_computed > 0:
            taken_s = done.compute_s / done.tokens_computed
            self.s_per_token += 0.2 * (taken_s - self.s_per_token) if self.s_per_token else taken_s


@dataclass(slots=True)
class StepOutcome:
    """What an answered step says. Entry `indices[i]` of its columns is a token of `sampled[i]`.

    `rows` are all the step's, those included that left it only now (`left`); `finishes` names those that ended,
    `dropped` those whose rows did not run, `failed` those that have no next token. `decode_batch` is set where every
    sequence that ran when the step was composed got a token, at `positions`, and nothing else changed.
    """

    done: StepDone
    rows: list[Sequence]
    sampled: list[Sequence]
    indices: Indices[int]
    finishes: dict[Sequence, FinishReason]
    dropped: dict[Sequence, None]
    failed: dict[Sequence, None] = field(default_factory=dict)
    left: list[Sequence] = field(default_factory=list)
    decode_batch: SteadyDecodeBatch | None = None
    positions: I64 = field(default_factory=i64)

    def is_plain_decode(self, running: list[Sequence]) -> bool:
        """Whether the step only added tokens, and `running` is the list of its composition."""
        return self.decode_batch is not None and self.decode_batch.running is running


def is_steady(rows: StepRows, done: StepDone) -> bool:
    """Whether every sequence of a decode batch got one token, and nothing else changed."""
    return rows.decode_batch is not None and rows.numbers == done.sequence and not done.dropped and not any(done.finish)


def settle_steady(rows: StepRows, done: StepDone) -> StepOutcome:
    """Advance the sequences of a step that `is_steady`."""
    for sequence, stop, token in zip(rows.sequences, rows.stops, done.token, strict=True):
        sequence.in_steps -= 1
        sequence.pending -= 1
        sequence.engines_lost = 0
        if stop > sequence.valid:
            sequence.valid = stop
        sequence.tokens.append(token)
    sampled, batch = rows.sequences, rows.decode_batch
    return StepOutcome(done, sampled, sampled, range(len(sampled)), {}, {}, decode_batch=batch, positions=rows.stops)


def settle(rows: StepRows, done: StepDone) -> StepOutcome:
    """Advance the sequences of a step whose rows `rows` ran, or were dropped."""
    answer = _outcome(rows, done)
    for sequence, stop, samples in zip(rows.sequences, rows.stops, rows.samples, strict=True):
        sequence.in_steps -= 1
        sequence.pending -= samples
        if sequence not in answer.dropped and sequence not in answer.failed:
            sequence.valid = max(sequence.valid, stop)
            sequence.engines_lost = 0
    for sequence, index in zip(answer.sampled, answer.indices, strict=True):
        sequence.tokens.append(done.token[index])
    return answer


def _outcome(rows: StepRows, done: StepDone) -> StepOutcome:
    """Match tokens to sequences. Nearly always all rows sampled, in their order."""
    if done.sequence == rows.numbers:
        sampled, indices = rows.sequences, list(range(len(rows.sequences)))
    else:
        known = dict(zip(rows.numbers, rows.sequences, strict=True))
        indices = [index for index, number in enumerate(done.sequence) if number in known]
        sampled = [known[done.sequence[index]] for index in indices]
    finishes: dict[Sequence, FinishReason] = {}
    if any(done.finish):
        pairs = zip(sampled, indices, strict=True)
        finishes = {sequence: FinishReason(done.finish[index]) for sequence, index in pairs if done.finish[index]}
    dropped, failed = _sequences_of(rows, done.dropped), _sequences_of(rows, done.failed)
    return StepOutcome(done, rows.sequences, sampled, indices, finishes, dropped, failed)


def _sequences_of(rows: StepRows, numbers: I64) -> dict[Sequence, None]:
    """The sequences of those numbers."""
    if not numbers:
        return {}
    named, pairs = set(numbers), zip(rows.sequences, rows.numbers, strict=True)
    return {sequence: None for sequence, number in pairs if number in named}
