"""What the answer to a step means for its rows: the plain case and every other come to the same."""

from collections.abc import Callable
from typing import Any

import pytest

from dunlin.messages.engine import StepDone
from dunlin.messages.types import FinishReason, f32, i8, i32, i64
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_outcome import StepOutcome, StepTotals, is_steady, settle, settle_steady
from services.instance.scheduling.step_rows import SteadyDecodeBatch, StepRows
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import ENGINE, D, make_place


def decode_rows(count: int = 2, **fields: Any) -> StepRows:
    """A decode batch: each sequence has ten tokens, the last of which is computed now."""
    sequences = [Sequence(number, number, D, make_place(number, tokens=10)) for number in range(1, count + 1)]
    for each in sequences:
        each.pending = each.in_steps = each.engines_lost = 1
        each.valid, each.issued = 9, 10
    numbers = i64(each.number for each in sequences)
    batch = SteadyDecodeBatch(sequences, D, numbers, i32([1] * count))
    values = {"starts": i64([9] * count), "stops": i64([10] * count), "decode_batch": batch, **fields}
    return StepRows(sequences, numbers, samples=i8([1] * count), **values)


def answer(*numbers: int, **fields: Any) -> StepDone:
    count = len(numbers)
    columns = i32([40 + number for number in numbers]), f32([0.0] * count), fields.pop("finish", i8([0] * count))
    return StepDone(1, i64(numbers), *columns, **fields)


UNSTEADY: dict[str, tuple[dict[str, Any], StepDone]] = {
    "a row was dropped": ({}, answer(1, dropped=i64([2]))),
    "a row that sampled is named as dropped": ({}, answer(1, 2, dropped=i64([2]))),
    "a sequence ended": ({}, answer(1, 2, finish=i8([0, FinishReason.STOP]))),
    "a row has no next token": ({}, answer(1, failed=i64([2]))),
    "no batch of decode rows": ({"decode_batch": None}, answer(1, 2)),
}


@pytest.mark.parametrize("case", UNSTEADY)
def test_a_step_that_changed_more_than_tokens_is_not_steady(case: str) -> None:
    fields, done = UNSTEADY[case]
    assert not is_steady(decode_rows(**fields), done)
    assert is_steady(decode_rows(), answer(1, 2))


def test_the_plain_case_and_the_general_one_come_to_the_same() -> None:
    plain, general = decode_rows(), decode_rows()
    first, second = settle_steady(plain, answer(1, 2)), settle(general, answer(1, 2))
    for mine, other in zip(plain.sequences, general.sequences, strict=True):
        state = [(each.valid, each.pending, each.in_steps, each.engines_lost) for each in (mine, other)]
        assert state == [(10, 0, 0, 0)] * 2
        assert list(mine.tokens) == list(other.tokens) == [*mine.place.tokens, 40 + mine.number]
    assert list(first.indices) == list(second.indices) == [0, 1]
    assert (first.decode_batch, second.decode_batch) == (plain.decode_batch, None)
    assert first.is_plain_decode(plain.sequences)
    assert not first.is_plain_decode(list(plain.sequences))
    assert not second.is_plain_decode(general.sequences)


def test_the_ledger_knows_a_plain_decode_step_by_the_list_of_its_composition() -> None:
    ledger, rows = StepLedger(ENGINE, SequenceTable()), decode_rows()
    assert ledger.add(rows) == 1
    outcome = ledger.complete(answer(1, 2))
    assert outcome.is_plain_decode(rows.sequences)
    assert list(outcome.positions) == [10, 10]


def test_the_time_per_token_follows_what_steps_take_by_a_fifth() -> None:
    """0.1 s a token, then 0.2 s: a fifth of the way."""
    totals = StepTotals()
    totals.count(answer(1, tokens_computed=10, compute_s=1.0))
    assert totals.s_per_token == 0.1
    totals.count(answer(1, tokens_computed=0, compute_s=1.0))
    assert totals.s_per_token == 0.1, "nothing was computed"
    totals.count(answer(1, tokens_computed=10, compute_s=2.0))
    assert totals.s_per_token == pytest.approx(0.12)


@pytest.mark.parametrize("settled", [settle, settle_steady])
def test_what_is_valid_beyond_the_row_stays_valid(settled: Callable[[StepRows, StepDone], StepOutcome]) -> None:
    rows = decode_rows()
    rows.sequences[0].valid = 12
    settled(rows, answer(1, 2))
    assert [each.valid for each in rows.sequences] == [12, 10]


def test_a_dropped_row_and_a_failed_one_leave_what_was_valid() -> None:
    rows = decode_rows(3)
    outcome = settle(rows, answer(3, dropped=i64([1]), failed=i64([2])))
    assert [each.valid for each in rows.sequences] == [9, 9, 10]
    assert [len(each.tokens) for each in rows.sequences] == [10, 10, 11]
    assert [each.engines_lost for each in rows.sequences] == [1, 1, 0]
    assert [(each.pending, each.in_steps) for each in rows.sequences] == [(0, 0)] * 3
    assert (list(outcome.dropped), list(outcome.failed)) == ([rows.sequences[0]], [rows.sequences[1]])
