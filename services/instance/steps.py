"""The steps that the engine has not answered: composing the next one, and taking an answer in.

At most two are outstanding, so that the engine finds the next step queued when it answers. Knows which sequences run
and whose slots they have; not who admitted them or what becomes of those that end.
"""

from array import array
from dataclasses import dataclass

from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import Figure, Finish, Why, i8, i32, i64
from dunlin.policies.batch import BatchPolicy, Candidate
from services.instance.sequences import Sequence
from services.instance.slab import Slab

OUTSTANDING_MAX = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part of an outstanding step."""

    sequence: Sequence
    number: int
    start: int
    stop: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What an answered step says of one row; `token` is None when it sampled none or was `dropped`."""

    sequence: Sequence
    token: int | None = None
    logprob: float = 0.0
    finish: Finish = Finish.RUNNING
    dropped: bool = False
    top_token: "array[int] | None" = None
    top_logprob: "array[float] | None" = None


class Steps:
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
        self._outstanding: dict[int, list[Row]] = {}
        self._numbers = 0
        self._composition: tuple[int, ...] = ()

    @property
    def outstanding(self) -> int:
        """Steps sent and not answered."""
        return len(self._outstanding)

    def has(self, step: int) -> bool:
        """Whether that step is outstanding."""
        return step in self._outstanding

    def executing(self) -> list[tuple[Sequence, int]]:
        """(sequence, stop of its row) of the oldest step, which the engine computes or did when it ended."""
        oldest = next(iter(self._outstanding.values()), [])
        return [(row.sequence, row.stop) for row in oldest]

    def forget(self) -> None:
        """The engine is gone: no step will be answered."""
        self._outstanding.clear()
        self._composition = ()

    def choose(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Which sequences may have how many tokens in the next step; empty if none may."""
        able: list[Sequence] = []
        candidates: list[Candidate] = []
        for sequence in running:
            remaining = sequence.remaining
            if remaining > 0:
                able.append(sequence)
                candidates.append(Candidate(remaining, remaining == 1 and sequence.has_sampled))
        if not able:
            return []
        taken = self._policy(candidates, self._budget_tokens)
        return [(sequence, tokens) for sequence, tokens in zip(able, taken, strict=True) if tokens > 0]

    def compose(self, chosen: list[tuple[Sequence, int]], slab: Slab, epoch: int, plan_version: int) -> Step:
        """The next step of rows whose slots are there already; from now on it is outstanding."""
        self._numbers += 1
        rows: list[Row] = []
        starts, stops, samples = i64(), i64(), i8()
        extent_row, extent_start, extent_length = i32(), i64(), i64()
        for index, (sequence, tokens) in enumerate(chosen):
            row = _row(sequence, tokens)
            rows.append(row)
            starts.append(row.start)
            stops.append(row.stop)
            samples.append(row.samples)
            for first, length in slab.extents(sequence, row.start, row.stop):
                extent_row.append(index)
                extent_start.append(first)
                extent_length.append(length)
        self._outstanding[self._numbers] = rows
        numbers = i64([row.number for row in rows])
        return Step(
            self._numbers,
            numbers,
            starts,
            stops,
            samples,
            extent_row,
            extent_start,
            extent_length,
            epoch=epoch,
            plan_version=plan_version,
            why=self._why(rows, numbers),
        )

    def take(self, done: StepDone) -> list[Result]:
        """What the answer says, row by row; the sequences' counters are up to date afterwards.

        Raises:
            KeyError: that step is not outstanding.
        """
        rows = self._outstanding.pop(done.step)
        self._count(done)
        sampled = {sequence: index for index, sequence in enumerate(done.sequence)}
        tops = _offsets(done)
        return [self._result(row, sampled.get(row.number), done, tops) for row in rows]

    def _result(self, row: Row, index: int | None, done: StepDone, tops: list[int]) -> Result:
        sequence = row.sequence
        sequence.in_steps -= 1
        sequence.pending -= row.samples
        dropped = row.number in done.dropped
        if not dropped:
            sequence.answered = max(sequence.answered, row.stop)
            sequence.engines_lost = 0
        if index is None:
            return Result(sequence, dropped=dropped)
        sequence.tokens.append(done.token[index])
        return Result(
            sequence,
            done.token[index],
            done.logprob[index],
            Finish(done.finish[index]),
            False,
            done.top_token[tops[index] : tops[index + 1]] if tops else None,
            done.top_logprob[tops[index] : tops[index + 1]] if tops else None,
        )

    def _count(self, done: StepDone) -> None:
        self.done_total += 1
        self.mixed_total += done.prefill_rows > 0 and done.decode_rows > 0
        self.multi_row_total += done.prefill_rows + done.decode_rows >= 2
        self.tokens_total += len(done.token)
        self.prefill_tokens_total += done.tokens_computed - done.decode_rows
        if done.tokens_computed > 0:
            taken_s = done.compute_s / done.tokens_computed
            self.s_per_token += 0.2 * (taken_s - self.s_per_token) if self.s_per_token else taken_s

    def _why(self, rows: list[Row], numbers: "array[int]") -> Why | None:
        """The reason, if the composition differs from the last step's."""
        composition = tuple(numbers)
        if composition == self._composition:
            return None
        before, self._composition = set(self._composition), composition
        tokens = 0
        decodes = 0
        for row in rows:
            tokens += row.stop - row.start
            decodes += row.samples and row.stop - row.start == 1
        figures = (
            Figure("rows", len(rows)),
            Figure("decode_rows", decodes),
            Figure("tokens", tokens),
            Figure("budget_tokens", self._budget_tokens),
            Figure("rows_before", len(before)),
        )
        return Why(self._policy_name, f"{len(rows)} rows, {tokens} tokens", figures)


def _row(sequence: Sequence, tokens: int) -> Row:
    """The sequence's next row, already counted in its state."""
    start, stop = sequence.computed, sequence.computed + tokens
    samples = stop == sequence.length
    sequence.computed = stop
    sequence.pending += samples
    sequence.in_steps += 1
    return Row(sequence, sequence.number, start, stop, samples)


def _offsets(done: StepDone) -> list[int]:
    """Where each row's top entries start in the flat columns; empty if there are none."""
    if not done.top_token:
        return []
    offsets = [0]
    for count in done.top_count:
        offsets.append(offsets[-1] + count)
    return offsets
