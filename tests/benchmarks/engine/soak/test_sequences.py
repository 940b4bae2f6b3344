"""What a soak expects of its sequences: tokens of the reference, rows that are there, slots until nothing uses them."""

from typing import Any

import pytest

from benchmarks.engine.soak.engine_child import SoakError
from benchmarks.engine.soak.sequences import MADE_TOKENS, ReferenceText, SequenceBook
from dunlin.messages.engine import Interrupted, StepDone
from dunlin.messages.types import FinishReason, f32, i8, i32, i64

TEXT = ReferenceText([5] * 10, tuple(range(MADE_TOKENS)))


def make_book() -> SequenceBook:
    book = SequenceBook("e", 100)
    assert book.add(1, TEXT) is not None
    return book


def done(step: int, *tokens: int, finish: FinishReason = FinishReason.RUNNING, **more: Any) -> StepDone:
    columns = i64([1] * len(tokens)), i32(tokens), f32([0.0] * len(tokens)), i8([finish] * len(tokens))
    return StepDone(step, *columns, **more)


def compose(book: SequenceBook, step: int, chunk: int = 100) -> None:
    book.compose(step, [book.open[1]], [chunk], 0)


def test_a_text_is_computed_in_chunks_and_compared() -> None:
    book = make_book()
    compose(book, 1, 6)
    compose(book, 2)
    book.on_done(done(1))
    book.on_done(done(2, 0))
    compose(book, 3)
    each = book.open[1]
    assert (each.issued, each.valid, each.length, each.made) == (11, 10, 12, [0])
    with pytest.raises(SoakError, match="token 1 of 1 is 7, not 1"):
        book.on_done(done(3, 7))
    assert book.tokens_checked == 1


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (done(1), "a token was expected"),
        (done(2, 0), "not outstanding"),
        (done(1, 0, finish=FinishReason.LENGTH), "finish reason"),
        (done(1, failed=i64([1])), "finite"),
        (done(1, dropped=i64([1])), "dropped without reason"),
        (done(1, left=i64([1])), "dropped without reason"),
    ],
)
def test_answers_that_cannot_be_are_found(event: StepDone, text: str) -> None:
    book = make_book()
    compose(book, 1)
    with pytest.raises(SoakError, match=text):
        book.on_done(event)


def left(step: int, parked: int) -> Interrupted:
    return Interrupted(i64([1]), 9, i64([step]), i32([2]), i32([3]), i8([parked]))


def test_rows_that_leave_are_parked_or_start_anew() -> None:
    book = make_book()
    compose(book, 1)
    assert book.on_interrupted(left(1, parked=1)) == 1
    each = book.open[1]
    assert (each.issued, each.length, each.may_run) == (0, 10, False)
    book.resume(2, [each])
    assert (each.issued, each.length, each.parked) == (10, 11, None)
    book.on_interrupted(left(2, parked=0))
    assert (each.issued, each.length, each.may_run) == (0, 10, True)
    with pytest.raises(SoakError, match="not outstanding"):
        book.on_interrupted(left(2, parked=0))


def test_slots_of_a_closed_sequence_are_free_once_its_rows_are_answered() -> None:
    book = make_book()
    compose(book, 1)
    book.close(1)
    assert (book.slots.free, len(book.known())) == (100 - TEXT.slots, 1)
    book.on_done(done(1, dropped=i64([1])))
    assert (book.slots.free, book.known()) == (100, [])


def test_without_slots_nothing_is_opened() -> None:
    book = SequenceBook("e", TEXT.slots)
    assert book.add(1, TEXT) is not None
    assert book.add(2, TEXT) is None
