"""What a live run's tokens say of its steps is what the steps were."""

import pytest

from dunlin.cost.course import steps_of
from dunlin.cost.models import ZERO, EngineTiming, HostCosts, MessageCosts, MoveModel, MoveModels, StepModel
from dunlin.workload.stats import Record

STEP = StepModel(ZERO, fixed_s=0.002, prefill_row_s=0.001, decode_row_s=0.0005, decode_context_s=1e-6)
MOVES = MoveModels(MoveModel(0.001, 1e9))
ALONE = EngineTiming(STEP, MOVES, 0.0, 4096, 1024)
OWN = MessageCosts(step_s=0.0003, row_s=0.0001, request_s=0.0005)


def record(tokens: int, *token_s: float) -> Record:
    return Record(0.0, tokens, len(token_s), token_s=list(token_s), outcome="ok")


def test_rows_are_those_whose_tokens_come_then() -> None:
    marker = record(30, 0.010, 0.014, 0.020, 0.024, 0.028)
    late = record(50, 0.0205, 0.0241)  # its prompt is in the step that ends at 0.020, its last token in the next
    first, second, third, fourth = (point.batch for point in steps_of([late, marker], ALONE))
    assert (first.decode_rows, first.prefill_tokens, first.decode_context) == (1, 0, 31)
    assert (second.decode_rows, second.prefill_rows, second.prefill_tokens) == (1, 1, 50)
    assert (third.decode_rows, third.prefill_rows, third.decode_context) == (2, 0, 33 + 51)
    assert (fourth.decode_rows, fourth.prefill_rows, fourth.decode_context) == (1, 0, 34)


def test_seconds_are_without_what_the_instance_takes_of_the_core() -> None:
    records = [record(30, 0.010, 0.016), record(50, 0.0161)]
    shared = EngineTiming(STEP, MOVES, 0.0, 4096, 1024, host=HostCosts(OWN, MessageCosts(), 0.0, shares_core=True))
    apart = EngineTiming(STEP, MOVES, 0.0, 4096, 1024, host=HostCosts(OWN, MessageCosts(), 0.0, shares_core=False))
    assert [point.seconds for point in steps_of(records, apart)] == pytest.approx([0.006])
    assert [point.seconds for point in steps_of(records, shared)] == pytest.approx([0.006 - 0.0003 - 2e-4 - 5e-4])


def test_no_step_takes_less_than_a_tenth_of_what_is_predicted() -> None:
    (point,) = steps_of([record(30, 0.010, 0.01001)], ALONE)
    assert point.seconds == pytest.approx(0.1 * ALONE.step_s(point.batch))
