"""What a live run's tokens say of its steps is what the steps were."""

from collections.abc import Callable
from itertools import cycle

import pytest

from cli.profiling.live_fit import fit_live_timing, steps_from_records
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import ZERO, BatchCounts, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.cost.store import StepPoint
from dunlin.workload.loadgen.stats import RequestRecord

STEP = StepModel(ZERO, fixed_s=0.002, prefill_row_s=0.001, decode_row_s=0.0005, decode_context_s=1e-6)
MOVES = TransferModels(TransferModel(0.001, 1e9))
ALONE = EngineTiming(STEP, MOVES, 0.0, 4096, 1024)
OWN = MessageCosts(step_s=0.0003, row_s=0.0001, request_s=0.0005)


def record(tokens: int, *token_s: float) -> RequestRecord:
    return RequestRecord(0.0, tokens, len(token_s), token_s=list(token_s), outcome="ok")


def test_rows_of_a_step_have_their_tokens_at_its_end() -> None:
    marker = record(30, 0.010, 0.014, 0.020, 0.024, 0.028)
    late = record(50, 0.0205, 0.0241)  # its prompt is in the step that ends at 0.020, its last token in the next
    first, second, third, fourth = (point.batch for point in steps_from_records([late, marker], ALONE))
    assert (first.decode_rows, first.prefill_tokens, first.decode_context) == (1, 0, 31)
    assert (second.decode_rows, second.prefill_rows, second.prefill_tokens) == (1, 1, 50)
    assert (third.decode_rows, third.prefill_rows, third.decode_context) == (2, 0, 33 + 51)
    assert (fourth.decode_rows, fourth.prefill_rows, fourth.decode_context) == (1, 0, 34)


def test_a_prompt_whose_first_token_comes_late_was_in_the_step_that_ended_last() -> None:
    """Its door is busy with its stream while the next step is under way already."""
    marker = record(30, 0.010, 0.014, 0.030, 0.040, 0.050)
    late = record(50, 0.036, 0.0401, 0.0501)
    first, second, third, fourth = (point.batch for point in steps_from_records([marker, late], ALONE))
    assert [batch.prefill_tokens for batch in (first, second, third, fourth)] == [0, 50, 0, 0]
    assert [batch.decode_rows for batch in (first, second, third, fourth)] == [1, 1, 2, 2]
    assert (third.decode_context, fourth.decode_context) == (33 + 51, 34 + 52)


def test_a_prompt_that_came_while_nothing_ran_is_in_no_step_that_is_seen() -> None:
    points = steps_from_records([record(30, 0.010, 0.014), record(50, 0.030, 0.034)], ALONE)
    assert [point.batch.prefill_tokens for point in points] == [0, 0]
    assert [point.batch.decode_context for point in points] == [31, 51]


def test_seconds_are_without_what_the_instance_takes_of_the_core() -> None:
    records = [record(30, 0.010, 0.016), record(50, 0.0161)]
    shared = EngineTiming(STEP, MOVES, 0.0, 4096, 1024, host=ProcessCosts(OWN, MessageCosts(), 0.0, shares_core=True))
    apart = EngineTiming(STEP, MOVES, 0.0, 4096, 1024, host=ProcessCosts(OWN, MessageCosts(), 0.0, shares_core=False))
    assert [point.seconds for point in steps_from_records(records, apart)] == pytest.approx([0.006])
    assert [point.seconds for point in steps_from_records(records, shared)] == pytest.approx(
        [0.006 - 0.0003 - 2e-4 - 5e-4]
    )


def test_no_step_takes_less_than_a_tenth_of_what_is_predicted() -> None:
    late, _ = steps_from_records([record(30, 0.010, 0.0101, 0.014)], ALONE)
    assert late.seconds == pytest.approx(0.1 * ALONE.step_s(late.batch))


def test_one_request_after_the_other_marks_the_steps() -> None:
    one, two = record(30, 0.010, 0.014, 0.018), record(40, 0.0141, 0.0181, 0.024)
    alone = record(50, 0.100, 0.106)  # nobody is answered before it: that time is nobody's step
    points = steps_from_records([alone, two, one], ALONE)
    assert [point.seconds for point in points] == pytest.approx([0.004, 0.004, 0.0059, 0.006])
    assert [point.batch.decode_rows for point in points] == [1, 2, 1, 1]
    assert points[0].batch.prefill_tokens == 40


def steps_taking(seconds: Callable[[float], float]) -> list[StepPoint]:
    """Of 1 to 60 rows, predicted at 2.6 to 38 ms."""
    batches = [BatchCounts(decode_rows=rows, decode_context=100 * rows) for rows in (1, 3, 10, 30, 60) * 20]
    return [StepPoint("reference", batch, seconds(ALONE.step_s(batch))) for batch in batches]


def test_what_takes_as_many_times_as_long_whatever_its_size_is_told_exactly() -> None:
    found = fit_live_timing(ALONE, steps_taking(lambda predicted_s: 1.2 * predicted_s))
    for rows in (1, 2, 17, 60):
        batch = BatchCounts(decode_rows=rows, decode_context=100 * rows)
        assert found.step_s(batch) == pytest.approx(1.2 * ALONE.step_s(batch))
    assert found.unsteadiness == pytest.approx([1.0] * len(found.unsteadiness))


def test_short_steps_may_lose_more_than_long_ones() -> None:
    found = fit_live_timing(ALONE, steps_taking(lambda predicted_s: predicted_s + 1e-3))
    short, long = (BatchCounts(decode_rows=rows, decode_context=100 * rows) for rows in (1, 60))
    assert found.step_s(short) == pytest.approx(ALONE.step_s(short) + 1e-3, rel=0.05)
    assert found.step_s(long) == pytest.approx(ALONE.step_s(long) + 1e-3, rel=0.05)


def test_noise_of_steps_is_in_the_course_and_not_in_their_size() -> None:
    times = cycle((0.2, 1.0, 1.0, 2.6))
    found = fit_live_timing(ALONE, steps_taking(lambda predicted_s: next(times) * predicted_s))
    batch = BatchCounts(decode_rows=3, decode_context=300)
    assert found.step_s(batch) == pytest.approx(1.2 * ALONE.step_s(batch), rel=1e-6)
    assert sum(found.unsteadiness) / len(found.unsteadiness) == pytest.approx(1.0, rel=0.05)


def test_too_few_steps_tell_nothing() -> None:
    with pytest.raises(ValueError, match="4 steps are too few"):
        fit_live_timing(ALONE, steps_taking(float)[:4])
