"""The steps that the engine's comparison sends: every token computed once, in the slots that are its own."""

import pytest

from benchmarks.engine.planning import BUDGET_TOKENS, SlotPlan, make_plan
from benchmarks.engine.workloads import RAGGED, WORKLOADS, Plan, PlannedStep, Workload


def written(steps: list[PlannedStep]) -> dict[tuple[int, int], int]:
    """Slot by (request, position). A step's extents are its rows' positions in order."""
    found: dict[tuple[int, int], int] = {}
    for step in steps:
        slots: list[list[int]] = [[] for _ in step.sequence]
        for row, start, length in zip(step.extent_row, step.extent_start, step.extent_length, strict=True):
            slots[row] += range(start, start + length)
        for index, start, stop, own in zip(step.sequence, step.start, step.stop, slots, strict=True):
            found |= {(index, at): slot for at, slot in zip(range(start, stop), own, strict=True)}
    return found


def sampled(steps: list[PlannedStep]) -> list[int]:
    """The requests of the sampled tokens, in order."""
    return [index for step in steps for index, sample in zip(step.sequence, step.sample, strict=True) if sample]


def planned(workload: Workload) -> Plan:
    return make_plan(workload, 0, 100, seed=1)[0]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.name)
def test_every_position_is_computed_once_in_a_slot_of_its_own(workload: Workload) -> None:
    plan, end = make_plan(workload, 1000, 100, seed=1)
    filled, ran = written(plan.fill), written(plan.steps)
    ends = [length + workload.outputs - 1 for length in workload.prompts]  # the last token's KV is never needed
    assert not filled.keys() & ran.keys()
    assert sorted(filled | ran) == [(index, at) for index, stop in enumerate(ends) for at in range(stop)]
    assert sum(step.tokens for step in plan.fill + plan.steps) == sum(ends)
    slots = sorted((filled | ran).values())
    assert len(set(slots)) == len(slots)
    assert (slots[0], slots[-1]) >= (1000, 1000)
    assert slots[-1] < end == 1000 + sum(ends) + len(ends)
    assert all(step.tokens <= BUDGET_TOKENS for step in plan.fill + plan.steps)
    assert sorted(sampled(plan.steps)) == [index for index in range(len(ends)) for _ in range(workload.outputs)]
    assert sampled(plan.fill) == []


def test_a_decode_workload_opens_its_sequences_with_the_slots_that_were_filled() -> None:
    plan = planned(Workload("w", (7, 5), 3, is_decode=True, pieces=2))
    filled = written(plan.fill)
    named = {
        (index, at): slot
        for index, extents in enumerate(plan.cached)
        for at, slot in enumerate([start + i for start, length in extents for i in range(length)])
    }
    assert named == filled
    assert [len(extents) for extents in plan.cached] == [2, 1]
    assert all(step.tokens == 2 for step in plan.steps)
    assert len(plan.steps) == 3


def test_prompts_wait_for_room_beside_the_rows_that_decode() -> None:
    plan = planned(WORKLOADS[-1])
    assert plan.steps[0].sequence == [0, 1, 2, 3]
    assert plan.steps[1].sequence == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [stop - start for start, stop in zip(plan.steps[1].start, plan.steps[1].stop, strict=True)] == [
        *[1] * 4,
        *[128] * 3,
        124,
    ]
    assert plan.steps[1].sample == [1] * 7 + [0]


def test_slots_in_pieces_have_the_other_texts_between_them() -> None:
    plan = SlotPlan.of([5, 4], 2, 10)
    assert plan.extents == [[(10, 2), (14, 3)], [(12, 2), (17, 2)]]
    assert plan.end == 19
    assert list(plan.cut(0, 1, 4)) == [(11, 1), (14, 2)]
    assert list(plan.cut(1, 2, 3)) == [(17, 1)]


def test_rates_count_prompts_or_samples() -> None:
    counted = {one.name: one.counted_tokens for one in WORKLOADS}
    assert counted["prefill 512"] == 512
    assert counted["decode 1"] == WORKLOADS[1].outputs
    assert counted["64 × (128, 128)"] == 64 * 128
    assert (len(RAGGED), RAGGED[0], RAGGED[-1]) == (16, 100, 1000)


def test_workloads_with_the_same_lengths_have_the_same_prompts() -> None:
    whole, split = (planned(one) for one in WORKLOADS if one.prompts == RAGGED)
    assert whole.prompts == split.prompts
    assert whole.steps != split.steps
