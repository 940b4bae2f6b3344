"""Steps of a group without an answer: which members compute for nothing, and what counts."""

from typing import Any

import pytest

from dunlin.messages.engine import StepDone
from dunlin.messages.group import GroupStepDone
from dunlin.messages.types import f32, i32, i64
from dunlin.policies.groups.elastic import Block
from services.instance.group.leading.exchanges import Exchange, ExchangeLedger, ExchangeRow
from services.instance.group.leading.numbers import GroupNumbers
from services.instance.group.leading.spread import SpreadSequence
from services.instance.sequence.table import SequenceTable
from services.instance.sequence.wait_clock import StepTiming
from tests.services.instance.bench import D, make_place

GROUP = 3


def done(step: int = 1, **fields: object) -> StepDone:
    return StepDone(step, i64(), i32(), f32(), i64(), **fields)  # type: ignore[arg-type]


def ledger(*members: set[int]) -> ExchangeLedger:
    """Exchanges without rows, each of these members."""
    made = ExchangeLedger(GroupNumbers())
    for waiting in members:
        number = made.next_number(GROUP)
        made.outstanding.append(Exchange(number, [], StepTiming(number, 0.0, 0.0, 0.0), waiting))
    return made


def said(number: int, answer: StepDone | None = None, refusal: str = "") -> GroupStepDone:
    return GroupStepDone(GROUP, (GROUP << 32) + number, answer, refusal)


def test_whole_answers_spoil_nothing() -> None:
    steps = ledger({0, 1}, {0, 1})
    assert steps.answer(1, said(1, done()))
    assert steps.spoilt() == {}


def test_a_member_that_serves_alone_and_ends_early_spoils_the_exchange() -> None:
    """It names no row that left, and its engine may have been unable to tell the peers that wait for it."""
    steps = ledger({0, 1, 2}, {0, 1})
    assert steps.answer(1, said(1, done(cut_short=True)))
    newest = (GROUP << 32) + 2
    assert steps.spoilt() == {0: newest, 2: newest - 1, 1: newest}
    assert steps.is_cancelling
    assert steps.spoilt() == {}, "they are told once"


def test_rows_that_leave_and_refusals_spoil_the_exchange() -> None:
    for message in (said(1, done(left=i64([7]))), said(1, refusal="no such guest")):
        steps = ledger({0, 1})
        assert steps.answer(0, message)
        assert steps.spoilt() == {1: (GROUP << 32) + 1}


def test_exchanges_are_taken_in_their_order_and_an_answer_counts_once() -> None:
    steps = ledger({0}, {0})
    assert steps.answer(0, said(2, done(2)))
    assert steps.take_answered() is None
    assert steps.answer(0, said(1, done()))
    assert not steps.answer(0, said(1, done()))
    first, second = steps.take_answered(), steps.take_answered()
    assert first is not None
    assert second is not None
    assert first.number < second.number


@pytest.mark.parametrize("what", ["left", "dropped", "failed", "nothing"])
def test_a_row_is_computed_where_all_its_members_did_their_part(what: str) -> None:
    spread = SpreadSequence(SequenceTable().add(D, make_place(), number=5))
    row = ExchangeRow(spread, (Block(0, 0, 4), Block(1, 4, 8)), samples=False)
    exchange = Exchange(1, [row], StepTiming(1, 0.0, 0.0, 0.0), {0, 1})
    exchange.answer(0, done(), "")
    assert not exchange.is_computed(row), "the other one has not answered"
    fields: dict[str, Any] = {} if what == "nothing" else {what: i64([5])}
    exchange.answer(1, done(**fields), "")
    assert exchange.is_computed(row) == (what == "nothing")


def test_a_lost_member_is_told_to_end_the_newest_that_it_has_not_answered() -> None:
    steps = ledger({0, 1}, {0, 1}, {0})
    assert steps.lose(1) == (GROUP << 32) + 2
    assert [each.is_incomplete for each in steps.outstanding] == [True, True, False]
    assert steps.lose(1) == 0
