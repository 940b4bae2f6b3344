"""Rooms of hidden states: what was put is taken once, by the rows that it is of."""

import pytest
import torch

from dunlin.engine.execution.hidden_rooms import HiddenRooms
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import StepError, StepRow
from tests.engine.commands import make_open


def make_row(sequence: int, start: int, stop: int) -> StepRow:
    return StepRow(sequence, EngineSequence(make_open(sequence), 100, 3), start, stop, False)


def states(tokens: int, value: float) -> torch.Tensor:
    return torch.full((tokens, 2), value)


def test_states_are_taken_in_the_order_of_the_rows() -> None:
    rooms = HiddenRooms(1000)
    rooms.put(5, 1, 0, states(2, 1.0))
    rooms.put(5, 2, 4, states(3, 2.0))
    rooms.put(6, 1, 0, states(2, 3.0))
    taken = rooms.take(5, [make_row(2, 4, 7), make_row(1, 0, 2)])
    assert taken[:, 0].tolist() == [2.0] * 3 + [1.0] * 2
    assert rooms.size_bytes == 2 * 2 * 4
    with pytest.raises(StepError, match="room 5 has no hidden states of tokens 0 to 2 of sequence 1"):
        rooms.take(5, [make_row(1, 0, 2)])


@pytest.mark.parametrize("row", [make_row(1, 0, 3), make_row(1, 1, 3), make_row(3, 0, 2)])
def test_states_of_other_tokens_are_refused_and_nothing_is_taken(row: StepRow) -> None:
    rooms = HiddenRooms(1000)
    rooms.put(5, 1, 0, states(2, 1.0))
    rooms.put(5, 2, 0, states(2, 2.0))
    with pytest.raises(StepError, match="room 5 has no hidden states"):
        rooms.take(5, [make_row(2, 0, 2), row])
    assert len(rooms.take(5, [make_row(2, 0, 2), make_row(1, 0, 2)])) == 4


def test_rooms_are_bounded_and_forget_a_sequence() -> None:
    rooms = HiddenRooms(48)
    rooms.put(5, 1, 0, states(2, 1.0))
    rooms.put(5, 1, 0, states(2, 4.0))
    assert rooms.size_bytes == 16
    rooms.put(7, 1, 2, states(2, 1.0))
    rooms.put(7, 2, 0, states(2, 1.0))
    with pytest.raises(StepError, match="8 bytes of hidden states beside 48 of 48"):
        rooms.check(8)
    rooms.forget(1)
    assert rooms.size_bytes == 16
    rooms.check(32)
