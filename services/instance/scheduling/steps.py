"""The steps that the engine has not answered: composing the next one, and taking an answer in.

At most two are outstanding, so that the engine finds the next step queued when it answers. Knows which sequences run
and which slots they have; not how they were admitted or what follows when they end.
"""

from collections.abc import Sequence as Indices
from dataclasses import dataclass, field

from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import I64, Figure, FinishReason, Why, i8, i64
from dunlin.policies.batch import BatchCandidate, BatchPolicy
from services.instance.kv.kv_cache import KvCache
from services.instance.scheduling.decode_fast_path import (
    DecodeBatch,
    DecodeFastPath,
    NextSlot,
    SlotExtents,
    StepRows,
    empty_extents,
)
from services.instance.sequence.table import Sequence

MAX_OUTSTANDING_STEPS = 2


_DECODE = BatchCandidate(1, is_decode=True)


@dataclass(slots=True)
class StepOutcome:
    """What an answered step says. Entry `indices[i]` of its columns is a token of `sampled[i]`.

    `rows` are all the step's; `finishes` names those that ended, `dropped` those whose rows did not run, `failed` those
    that have no next token. `decode_batch` is set where every sequence that ran when the step was composed got a token,
    at `positions`, and nothing else changed.
    """

    done: StepDone
    rows: list[Sequence]
    sampled: list[Sequence]
    indices: Indices[int]
    finishes: dict[Sequence, FinishReason]
    dropped: dict[Sequence, None]
    failed: dict[Sequence, None] = field(default_factory=dict)
    decode_batch: DecodeBatch | None = None
    positions: I64 = field(default_factory=i64)

    def is_plain_decode(self, running: list[Sequence]) -> bool:
        """Whether the step only added tokens, and `running` is the list of its composition."""
        return self.decode_batch is not None and self.decode_batch.running is running


class OutstandingSteps:
    """Owns what is outstanding, and the counters of what was answered."""

    def __init__(self, policy: BatchPolicy, policy_name: str, budget_tokens: int) -> None:
        self.done_total = 0
        self.mixed_total = 0
        self.multi_row_total = 0
        self.tokens_total = 0
        self.prefill_tokens_total = 0
        self.s_per_token = 0.0
        self._policy = policy
        self._policy_name = policy_name
        self._budget_tokens = budget_tokens
        self._outstanding: dict[int, StepRows] = {}
        self._numbers = 0
        self._composition = i64()
        self._fast_path = DecodeFastPath()

    @property
    def outstanding(self) -> int:
        """Steps sent and not answered."""
        return len(self._outstanding)

    def is_outstanding(self, step: int) -> bool:
        """Whether that step is outstanding."""
        return step in self._outstanding

    def executing_rows(self) -> list[tuple[Sequence, int]]:
        """(sequence, stop of its row) of the oldest step, which the engine computes or did when it ended."""
        oldest = next(iter(self._outstanding.values()), None)
        return list(zip(oldest.sequences, oldest.stops, strict=True)) if oldest is not None else []

    def clear(self) -> None:
        """The engine is gone: forget all steps, none will be answered."""
        self._outstanding.clear()
        self._composition = i64()
        self._fast_path.clear()

    def choose_rows(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Which sequences may have how many tokens in the next step; empty if none may."""
        able: list[Sequence] = []
        candidates: list[BatchCandidate] = []
        for sequence in running:  # `remaining` and `has_sampled`, written out: this is a good part of a token's cost
            place, length = sequence.place, len(sequence.tokens) + sequence.pending
            if length < place.prompt_tokens + place.max_tokens:
                remaining = length - sequence.computed
                able.append(sequence)
                is_decode = remaining == 1 and length > len(place.tokens)
                candidates.append(_DECODE if is_decode else BatchCandidate(remaining, is_decode=False))
        if not able:
            return []
        taken = self._policy(candidates, self._budget_tokens)
        return [(sequence, tokens) for sequence, tokens in zip(able, taken, strict=True) if tokens > 0]

    def repeat(self, running: list[Sequence], slot_of: NextSlot) -> Step | None:
        """The next step where it has the rows of the one before, each a token further; None: it must be composed."""
        found = self._fast_path.next_rows(running, slot_of)
        return None if found is None else self._add(*found)

    def compose(
        self,
        running: list[Sequence],
        chosen: list[tuple[Sequence, int]],
        kv_cache: KvCache,
    ) -> Step:
        """The next step of rows `chosen` of `running`, whose slots are there already; it is outstanding from now on."""
        starts, extents = i64([sequence.computed for sequence, _ in chosen]), empty_extents()
        stops = i64([sequence.computed + tokens for sequence, tokens in chosen])
        rows = StepRows(
            [sequence for sequence, _ in chosen], i64([sequence.number for sequence, _ in chosen]), stops, i8()
        )
        for index, sequence in enumerate(rows.sequences):
            stop = stops[index]
            first, last, slot = sequence.slot_run
            if first <= sequence.computed and stop <= last:  # as `kv_cache.extents` would find, for nearly every row
                extents.add(index, slot + sequence.computed - first, stop - sequence.computed)
            else:
                for at, length in kv_cache.extents(sequence, sequence.computed, stop):
                    extents.add(index, at, length)
            samples = stop == len(sequence.tokens) + sequence.pending
            sequence.computed = stop
            sequence.pending += samples
            sequence.in_steps += 1
            rows.samples.append(samples)
        self._fast_path.record(running, rows, starts, extents)
        return self._add(rows, starts, extents, self._why(rows, starts))

    def _add(self, rows: StepRows, starts: I64, extents: SlotExtents, why: Why | None = None) -> Step:
        self._numbers += 1
        self._outstanding[self._numbers] = rows
        return Step(
            self._numbers,
            rows.numbers,
            starts,
            rows.stops,
            rows.samples,
            extents.row,
            extents.start,
            extents.length,
            why=why,
        )

    def complete(self, done: StepDone) -> StepOutcome:
        """What the answer says; the sequences' counters and tokens are up to date afterwards.

        Raises:
            KeyError: that step is not outstanding.
        """
        rows = self._outstanding.pop(done.step)
        self._count(done)
        if (
            rows.decode_batch is not None
            and rows.numbers == done.sequence
            and not done.dropped
            and not any(done.finish)
        ):
            return _steady_outcome(rows, done)
        answer = _outcome(rows, done)
        for sequence, stop, samples in zip(rows.sequences, rows.stops, rows.samples, strict=True):
            sequence.in_steps -= 1
            sequence.pending -= samples
            if sequence not in answer.dropped and sequence not in answer.failed:
                sequence.confirmed = max(sequence.confirmed, stop)
                sequence.engines_lost = 0
        for sequence, index in zip(answer.sampled, answer.indices, strict=True):
            sequence.tokens.append(done.token[index])
        return answer

    def _count(self, done: StepDone) -> None:
        self.done_total += 1
        self.mixed_total += done.prefill_rows > 0 and done.decode_rows > 0
        self.multi_row_total += done.prefill_rows + done.decode_rows >= 2
        self.tokens_total += len(done.token)
        self.prefill_tokens_total += done.tokens_computed - done.decode_rows
        if done.tokens_computed > 0:
            taken_s = done.compute_s / done.tokens_computed
            self.s_per_token += 0.2 * (taken_s - self.s_per_token) if self.s_per_token else taken_s

    def _why(self, rows: StepRows, starts: I64) -> Why | None:
        """The reason, if the composition differs from the last step's."""
        if rows.numbers == self._composition:
            return None
        before, self._composition = len(self._composition), rows.numbers
        tokens = decodes = 0
        for start, stop, samples in zip(starts, rows.stops, rows.samples, strict=True):
            tokens += stop - start
            decodes += samples and stop - start == 1
        figures = (
            Figure("rows", len(starts)),
            Figure("decode_rows", decodes),
            Figure("tokens", tokens),
            Figure("budget_tokens", self._budget_tokens),
            Figure("rows_before", before),
        )
        return Why(self._policy_name, f"{len(starts)} rows, {tokens} tokens", figures)


def _steady_outcome(rows: StepRows, done: StepDone) -> StepOutcome:
    """The outcome of a step in which every sequence got one token, and nothing else changed."""
    for sequence, stop, token in zip(rows.sequences, rows.stops, done.token, strict=True):
        sequence.in_steps -= 1
        sequence.pending -= 1
        sequence.engines_lost = 0
        if stop > sequence.confirmed:
            sequence.confirmed = stop
        sequence.tokens.append(token)
    return StepOutcome(
        done, rows.sequences, rows.sequences, range(len(rows.sequences)), {}, {}, {}, rows.decode_batch, rows.stops
    )


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
