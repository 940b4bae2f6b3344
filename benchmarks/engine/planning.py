"""The steps that an instance would send for a workload, and the slots that they write.

No stop token ends a text, so the steps follow from the lengths alone; `chunked_prefill` composes them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.engine.workloads import Plan, PlannedStep, Workload
from dunlin.policies.batch import chunked_prefill
from dunlin.policies.step_budget import BatchCandidate, StepBudget

BUDGET_TOKENS = 512
"""The default of `instance.scheduler.budget_tokens`."""

Span = tuple[int, int]
"""(start, length)."""


@dataclass(slots=True)
class SlotPlan:
    """Which slots each request of a workload has. `end` is the first slot after all of them."""

    extents: list[list[Span]] = field(default_factory=list)
    end: int = 0

    @staticmethod
    def of(lengths: Sequence[int], pieces: int, first: int) -> "SlotPlan":
        """Slots from `first` for texts of `lengths`, each in `pieces` runs with the other texts' between them."""
        plan = SlotPlan([[] for _ in lengths], first)
        for piece in range(pieces):
            for index, length in enumerate(lengths):
                size = length * (piece + 1) // pieces - length * piece // pieces
                plan.extents[index].append((plan.end, size))
                plan.end += size
        return plan

    def cut(self, index: int, start: int, stop: int) -> Iterator[Span]:
        """The extents of the positions `[start, stop)` of request `index`."""
        position = 0
        for first, length in self.extents[index]:
            low, high = max(start, position), min(stop, position + length)
            if low < high:
                yield first + low - position, high - low
            position += length


def make_plan(workload: Workload, first_slot: int, vocabulary: int, seed: int) -> tuple[Plan, int]:
    """The plan of a workload whose slots begin at `first_slot`, and the first slot after them."""
    draw = random.Random(f"{seed} {workload.prompts}")
    prompts = [draw.choices(range(vocabulary), k=length) for length in workload.prompts]
    slots = SlotPlan.of([length + workload.outputs for length in workload.prompts], workload.pieces, first_slot)
    known = [length - 1 if workload.is_decode else 0 for length in workload.prompts]
    cached = [list(slots.cut(index, 0, length)) for index, length in enumerate(known)]
    fill = [_planned(slots, rows) for rows in _fill(known)]
    steps = [_planned(slots, rows) for rows in _schedule(workload, known)]
    return Plan(workload, prompts, cached, fill, steps), slots.end


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    start: int
    stop: int
    sample: bool


def _fill(known: Sequence[int]) -> Iterator[list[_Row]]:
    """One sequence after another, in chunks."""
    for index, length in enumerate(known):
        for start in range(0, length, BUDGET_TOKENS):
            yield [_Row(index, start, min(start + BUDGET_TOKENS, length), False)]


def _schedule(workload: Workload, known: Sequence[int]) -> Iterator[list[_Row]]:
    computed, lengths = list(known), list(workload.prompts)
    ends = [length + workload.outputs for length in lengths]
    while able := [index for index, end in enumerate(ends) if lengths[index] < end]:
        candidates = [
            BatchCandidate(lengths[index] - computed[index], lengths[index] > workload.prompts[index]) for index in able
        ]
        rows = []
        for index, tokens in zip(able, chunked_prefill(candidates, StepBudget(BUDGET_TOKENS)), strict=True):
            if tokens:
                start, computed[index] = computed[index], computed[index] + tokens
                rows.append(_Row(index, start, computed[index], computed[index] == lengths[index]))
                lengths[index] += rows[-1].sample
        yield rows


def _planned(slots: SlotPlan, rows: Sequence[_Row]) -> PlannedStep:
    step = PlannedStep()
    for row, each in enumerate(rows):
        step.sequence.append(each.index)
        step.start.append(each.start)
        step.stop.append(each.stop)
        step.sample.append(int(each.sample))
        for start, length in slots.cut(each.index, each.start, each.stop):
            step.extent_row.append(row)
            step.extent_start.append(start)
            step.extent_length.append(length)
    return step
