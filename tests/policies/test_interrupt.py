"""Policies for rows that leave their steps: the restless one does everything, and the same again."""

from dataclasses import replace
from typing import Any

from dunlin.messages.types import RequestClass
from dunlin.policies.interrupt import (
    ARRIVAL_POLICIES,
    INTERRUPT_POLICIES,
    InterruptCandidate,
    InterruptPolicy,
    StepSituation,
    never,
    on_arrival,
    on_arrival_rows,
    recall,
    recall_rows,
    restless,
)


def rows(is_prefill: bool, is_parked: bool) -> list[InterruptCandidate]:
    return [InterruptCandidate(number, 7, 10, 20, is_prefill, is_parked) for number in range(1000)]


def shares(is_prefill: bool, is_parked: bool = False) -> tuple[float, float, float]:
    """Of 1,000 rows: those suspended, discarded and resumed."""
    choice = restless(rows(is_prefill, is_parked), StepSituation(9))
    assert choice is not None
    return len(choice.suspend) / 1000, len(choice.discard) / 1000, len(choice.resume) / 1000


def test_never_spares_all() -> None:
    assert never(rows(True, False), StepSituation(9)) is None


def test_restless_parks_prompts_often_next_tokens_seldom_and_brings_parked_rows_back() -> None:
    for found, wanted in (
        (shares(is_prefill=True), (0.4, 0.1, 0.0)),
        (shares(is_prefill=False), (0.08, 0.04, 0.0)),
        (shares(is_prefill=True, is_parked=True), (0.0, 0.1, 0.2)),
    ):
        assert all(abs(one - other) < 0.04 for one, other in zip(found, wanted, strict=True)), found


def test_restless_chooses_the_same_of_the_same_and_others_after_another_step() -> None:
    candidates = rows(True, False)
    assert restless(candidates, StepSituation(9)) == restless(candidates, StepSituation(9))
    assert restless(candidates, StepSituation(9)) != restless(candidates, StepSituation(10))
    assert restless([], StepSituation(9)) is None
    assert INTERRUPT_POLICIES["restless"] is restless


def batch_row(number: int, request_class: RequestClass = RequestClass.BATCH, is_parked: bool = False) -> Any:
    return InterruptCandidate(number, 7, 10, 20, True, is_parked, request_class)


LATE = StepSituation(9, waiting_tokens=100, waiting_s=0.2, remaining_s=0.5, prefill_s=0.4, ttft_s=1.0)


def test_on_arrival_batch_steps_make_way_where_the_objective_would_be_missed() -> None:
    candidates = [batch_row(1), batch_row(2), batch_row(3, is_parked=True)]
    choice = on_arrival(candidates, LATE)
    assert choice is not None
    assert (choice.discard, choice.suspend, choice.resume) == ((0, 1), (), ())
    assert on_arrival(candidates, replace(LATE, ttft_s=1.2)) is None, "the objective is met"
    assert on_arrival(candidates, replace(LATE, waiting_tokens=0)) is None, "nothing waits"
    assert on_arrival(candidates, replace(LATE, remaining_s=0.004, waiting_s=0.9)) is None, "the steps end anyway"


def test_on_arrival_steps_with_an_interactive_row_go_on_and_their_batch_rows_may_leave() -> None:
    candidates = [batch_row(1), batch_row(2, RequestClass.INTERACTIVE)]
    assert on_arrival(candidates, LATE) is None
    choice = on_arrival_rows(candidates, LATE)
    assert choice is not None
    assert choice.discard == (0,)


def test_starved_rows_stay_in_steps_that_they_share_with_interactive_ones_and_leave_others() -> None:
    starved, other = replace(batch_row(1), is_risen=True), batch_row(2)
    choice = on_arrival_rows([starved, other, batch_row(3, RequestClass.INTERACTIVE)], LATE)
    assert choice is not None
    assert choice.discard == (1,)
    elsewhere = replace(batch_row(3, RequestClass.INTERACTIVE), step=8)
    for policy, rows in ((on_arrival_rows, [starved, other, elsewhere]), (on_arrival, [starved, other])):
        choice = policy(rows, LATE)
        assert choice is not None
        assert choice.discard == (0, 1)


def test_rows_leave_when_they_cost_more_than_a_small_share_of_the_objective() -> None:
    early = replace(LATE, waiting_s=0.0, remaining_s=0.05, prefill_s=0.05)
    assert on_arrival([batch_row(1)], early) is None
    assert on_arrival_rows([batch_row(1)], early) is not None
    assert on_arrival_rows([batch_row(1)], replace(early, remaining_s=0.03)) is None


INTERACTIVE = RequestClass.INTERACTIVE
QUEUED = StepSituation(
    8, waiting_tokens=100, remaining_s=0.1, prefill_s=0.1, ttft_s=1.0, elapsed_s=0.01, queued_step=8, queued_s=0.04
)
"""Step 7 runs for 0.06 s more, and step 8 is behind it."""


def chosen(policy: InterruptPolicy, rows: list[Any], situation: StepSituation) -> tuple[int, tuple[int, ...]]:
    """The step that is taken back, and the rows that leave others."""
    choice = policy(rows, situation)
    return (0, ()) if choice is None else (choice.recall, choice.discard)


def test_a_queued_step_with_batch_rows_is_taken_back_for_a_request_that_waits() -> None:
    rows = [batch_row(1), batch_row(2, INTERACTIVE), replace(batch_row(3), step=8)]
    assert chosen(recall, rows, QUEUED) == (8, ())
    assert recall(rows, replace(QUEUED, waiting_tokens=0)) is None, "nothing waits"
    assert recall(rows, replace(QUEUED, queued_step=0, queued_s=0.0)) is None, "it has no batch row"
    assert recall(rows, replace(QUEUED, queued_s=0.004)) is None, "it takes no time"
    assert recall(rows, replace(QUEUED, queued_step=0)) is None, "there is none"
    mixed = [batch_row(1), replace(batch_row(2, INTERACTIVE), is_prefill=False), replace(batch_row(3), step=8)]
    assert chosen(recall, mixed, QUEUED) == (8, ()), "one prompt in the running step is enough"


def test_no_step_is_taken_back_behind_one_that_answers_no_interrupt_before_its_end() -> None:
    ends_soon = replace(QUEUED, remaining_s=0.044)
    assert recall([batch_row(1), batch_row(2, INTERACTIVE)], ends_soon) is None
    decodes = [replace(batch_row(1), is_prefill=False), replace(batch_row(2, INTERACTIVE), is_prefill=False)]
    assert recall(decodes, QUEUED) is None, "decode rows alone have no safepoint"
    assert chosen(recall, decodes[:1], QUEUED) == (8, ()), "but those of batch work are preemptible"
    assert recall([replace(batch_row(1), step=8)], QUEUED) is None, "all rows of the running step are held"


def test_the_running_step_is_interrupted_where_the_request_is_late_without_the_queued_one() -> None:
    rows = [replace(batch_row(3), step=8), batch_row(1), batch_row(2)]
    late = replace(QUEUED, waiting_s=0.95)
    assert chosen(recall, rows, late) == (8, (1, 2))
    assert chosen(recall, rows, replace(late, waiting_s=0.83)) == (8, ()), "0.06 and 0.1 s more, without 0.04 of step 8"
    assert chosen(recall, [*rows, batch_row(4, INTERACTIVE)], late) == (8, ())


def test_batch_rows_stay_in_a_running_step_of_which_more_would_be_lost_than_is_left() -> None:
    rows = [batch_row(1), batch_row(2, INTERACTIVE)]
    assert chosen(recall_rows, rows, QUEUED) == (8, (0,))
    assert chosen(recall_rows, rows, replace(QUEUED, elapsed_s=0.07)) == (8, ())
    long = replace(QUEUED, elapsed_s=0.2, remaining_s=0.15)
    assert chosen(recall_rows, rows, long) == (8, (0,)), "0.11 s are more than a tenth of the objective"
    alone = replace(QUEUED, queued_step=0, queued_s=0.0, remaining_s=0.06)
    assert recall_rows(rows, replace(alone, elapsed_s=0.07)) is None
    assert chosen(recall_rows, rows, alone) == (0, (0,))


def test_they_are_in_the_tables() -> None:
    assert (INTERRUPT_POLICIES["recall"], INTERRUPT_POLICIES["recall_rows"]) == (recall, recall_rows)
    assert {recall, recall_rows} <= set(ARRIVAL_POLICIES)
