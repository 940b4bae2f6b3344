"""The states of a sequence, and the book of all sequences."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import RequestClass, i32
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import TRANSITIONS, IllegalTransition, SequenceState
from services.instance.sequence.table import SequenceTable

DISPATCHER = Address("dispatcher", "d", 1)
OTHER = Address("dispatcher", "e", 2)


def make_place(request: int = 1, tokens: int = 5, **overrides: Any) -> Place:
    values = {"attempt": 1, "tokens": i32(range(tokens)), "prompt_tokens": tokens, "max_tokens": 4, **overrides}
    return Place(request=request, **values)


def make_sequence(state: SequenceState = SequenceState.WAITING, **overrides: Any) -> Sequence:
    return Sequence(1, 1, DISPATCHER, make_place(**overrides), state)


@pytest.mark.parametrize("old", SequenceState)
@pytest.mark.parametrize("new", SequenceState)
def test_only_the_table_allows_a_transition(old: SequenceState, new: SequenceState) -> None:
    sequence = make_sequence(old)
    if new in TRANSITIONS[old]:
        sequence.transition(new)
        assert sequence.state is new
    else:
        with pytest.raises(IllegalTransition, match=f"{old.value} to {new.value}"):
            sequence.transition(new)
        assert sequence.state is old


def test_the_first_to_start_is_the_first_waiting_one_that_does_not_wait_for_the_kvstore() -> None:
    book = SequenceTable()
    assert book.first_to_start() is None
    batch, claiming, first, _ = (
        book.add(DISPATCHER, make_place(number, request_class=request_class))
        for number, request_class in enumerate([RequestClass.BATCH] + 3 * [RequestClass.INTERACTIVE], start=1)
    )
    claiming.is_claiming = True
    assert book.first_to_start() is first
    assert book.waiting()[-1] is batch


def test_every_state_can_be_reached_and_left_but_the_last() -> None:
    reached = {state for targets in TRANSITIONS.values() for state in targets}
    assert reached == set(SequenceState), "WAITING is reached again after a preemption"
    assert [state for state, targets in TRANSITIONS.items() if not targets] == [SequenceState.ENDED]
    for state in SequenceState:
        seen = {state}
        while more := {new for old in seen for new in TRANSITIONS[old]} - seen:
            seen |= more
        assert SequenceState.ENDED in seen, f"{state} is a trap"


def test_remaining_counts_positions_until_the_next_token() -> None:
    sequence = make_sequence(tokens=5)
    assert (sequence.remaining, sequence.has_sampled) == (5, False)
    sequence.issued = 4
    assert (sequence.remaining, sequence.has_sampled) == (1, False), "the last prompt token was not sampled here"
    sequence.issued, sequence.pending = 5, 1
    assert (sequence.remaining, sequence.has_sampled) == (1, True)


def test_nothing_remains_once_the_last_token_is_being_sampled() -> None:
    sequence = make_sequence(tokens=5, max_tokens=2)
    sequence.tokens.append(9)
    sequence.issued, sequence.pending = 6, 1
    assert sequence.remaining == 0


def test_the_first_to_come_runs_first_also_after_a_preemption() -> None:
    book = SequenceTable()
    old, young = book.add(DISPATCHER, make_place(1)), book.add(DISPATCHER, make_place(2))
    book.transition(young, SequenceState.RUNNING)
    book.transition(old, SequenceState.RUNNING)
    assert book.running == [old, young]
    newest = book.add(DISPATCHER, make_place(3))
    book.transition(young, SequenceState.DRAINING)
    book.transition(young, SequenceState.WAITING)
    young.preempted = True
    assert book.waiting() == [young, newest]
    assert (book.waiting_count, book.waiting_tokens()) == (2, 10)


def test_a_sequence_that_stops_is_no_longer_its_requests_but_still_there() -> None:
    book = SequenceTable()
    sequence = book.add(DISPATCHER, make_place(1))
    book.transition(sequence, SequenceState.RUNNING)
    book.transition(sequence, SequenceState.ENDING)
    assert book.by_key((DISPATCHER, 1)) is None
    assert book.by_number(sequence.number) is sequence
    newer = book.add(DISPATCHER, make_place(1, attempt=2))
    book.transition(sequence, SequenceState.ENDED)
    assert book.by_key((DISPATCHER, 1)) is newer
    assert book.by_arrival() == [newer]


def test_a_renumbered_sequence_is_found_by_its_new_number_alone() -> None:
    book = SequenceTable()
    sequence = book.add(DISPATCHER, make_place())
    old = sequence.number
    book.renumber(sequence)
    assert book.by_number(old) is None
    assert book.by_number(sequence.number) is sequence
    assert book.add(DISPATCHER, make_place(2)).number > sequence.number


def test_dispatchers_number_their_requests_for_themselves() -> None:
    book = SequenceTable()
    mine, others = book.add(DISPATCHER, make_place(1)), book.add(OTHER, make_place(1))
    assert book.by_key((DISPATCHER, 1)) is mine
    assert book.by_dispatcher(OTHER) == [others]
