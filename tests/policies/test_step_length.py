"""Steps that take longer than the objective per token, so that a first token comes in time."""

from dataclasses import replace

import pytest

from dunlin.messages.types import RequestClass
from dunlin.policies.slo_batch import harvest, slo_aware
from dunlin.policies.step_budget import BatchCandidate, StepBudget
from tests.policies.test_slo_batch import Linear, decode, prompt

INFINITE = float("inf")


def budget(rows: list[BatchCandidate], late_tokens: float = 2.0) -> StepBudget:
    """An objective of 95 ms for a step (`AIM_SHARE`), and times of `Linear`: two rows take 20 ms of each step."""
    return StepBudget(512, [0] * len(rows), tpot_s=0.1, ttft_s=1.0, times=Linear(), late_tokens=late_tokens)


def due(tokens: int, due_in_s: float) -> BatchCandidate:
    return BatchCandidate(tokens, False, due_in_s=due_in_s)


@pytest.mark.parametrize(
    ("due_in_s", "chunk"),
    [
        (INFINITE, 74),
        (0.286, 74),  # three steps of 95 ms, with 75 of the prompt each
        (0.284, 200),
        (-1.0, 200),
    ],
)
def test_a_step_is_longer_where_a_first_token_would_be_late(due_in_s: float, chunk: int) -> None:
    rows = [decode(), decode(), due(200, due_in_s)]
    assert harvest(rows, budget(rows)) == [1, 1, chunk]
    assert slo_aware(rows, budget(rows)) == [1, 1, 79], "as in the paper"


@pytest.mark.parametrize(("late_tokens", "chunk"), [(2.0, 200), (1.99, 74), (-5.0, 74)])
def test_it_is_as_often_as_its_rows_may_be_late(late_tokens: float, chunk: int) -> None:
    rows = [decode(), decode(), due(200, 0.25)]
    assert harvest(rows, budget(rows, late_tokens)) == [1, 1, chunk]


def test_rows_of_batch_work_are_late_without_being_counted_and_stay_out() -> None:
    batch = [decode(RequestClass.BATCH)] * 9
    rows = [decode(), decode(), due(200, 0.25), *batch]
    assert harvest(rows, replace(budget(rows), ttft_s=1.1)) == [1, 1, 200, 1, *[0] * 8], "one of them fits 1 % of 1.1 s"


def test_a_prompt_waits_for_those_with_fewer_tokens_left() -> None:
    alone, behind = [decode(), due(300, 0.39)], [decode(), prompt(200), due(300, 0.56)]
    assert harvest(alone, budget(alone)) == [1, 84], "four steps of 95 ms"
    assert harvest(behind, budget(behind)) == [1, 200, 74], "six of them"
    shorter = [decode(), due(200, 0.29), prompt(900)]
    assert harvest(shorter, budget(shorter)) == [1, 84, 0], "what is longer comes after it"


def test_a_prompt_that_takes_longer_than_its_objective_changes_nothing() -> None:
    rows = [decode(), decode(), due(200, 0.15)]
    assert harvest(rows, replace(budget(rows), ttft_s=0.2)) == [1, 1, 200]
    assert harvest(rows, replace(budget(rows), ttft_s=0.199)) == [1, 1, 74]


def test_a_step_is_no_longer_where_the_rows_that_decode_hardly_count() -> None:
    rows = [decode(), due(200, 0.1)]
    assert harvest(rows, replace(budget(rows), tpot_s=0.105)) == [1, 200], "10.01 of 99.75 ms"
    assert harvest(rows, replace(budget(rows), tpot_s=0.106)) == [1, 90], "of 100.7"


def test_prompts_that_a_step_of_the_objective_holds_no_token_of() -> None:
    rows = [*[decode()] * 10, due(100, 0.2)]
    assert harvest(rows, budget(rows, 10.0)) == [*[1] * 10, 100], "100 ms for the rows, 100 for the prompt"
    crowded = [*[decode()] * 29, due(5, 9.0)]
    assert harvest(crowded, budget(crowded, 29.0)) == [*[1] * 29, 5], "no step of 285 ms holds the rows"


def test_steps_without_rows_that_decode_or_without_predictions_are_as_before() -> None:
    alone = [due(2000, 0.5)]
    assert harvest(alone, budget(alone)) == [333]
    rows = [decode(), due(2000, 0.5)]
    blind = budget(rows)
    blind.times = None
    assert harvest(rows, blind) == [1, 511]


@pytest.mark.parametrize(
    ("contexts", "slots", "taken", "chunk"),
    [
        ([600, 600, 0], 2000, 1500, 17),  # 50 ms: 32 for the rows
        ([600, 600, 0], 2400, 1500, 62),
        ([600, 600, 0], 2400, 2399, 62),
        ([600, 600, 0], 2000, 1000, 62),  # they share a prefix
        ([600, 600, 500], 2000, 1500, 62),  # batch work holds the rest
        ([600, 600, 499], 2000, 1500, 17),
        ([600, 600, 0], 0, 0, 62),  # unknown
    ],
)
def test_batch_work_lengthens_steps_less_where_interactive_rows_hold_most_slots(
    contexts: list[int], slots: int, taken: int, chunk: int
) -> None:
    rows = [decode(), decode(), prompt(500, RequestClass.BATCH)]
    asked = replace(budget(rows), contexts=contexts, slots=slots, taken_slots=taken)
    assert harvest(rows, asked) == [1, 1, chunk]
    assert slo_aware(rows, asked) == [1, 1, 67], "as in the paper"
