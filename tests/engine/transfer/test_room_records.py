"""What steps leave in transit rooms: what was put is taken once, by the rows that it is of."""

import numpy as np
import pytest
import torch

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.transit_rooms import RoomRow, TransitRooms


def states(tokens: int, value: float) -> torch.Tensor:
    return torch.full((tokens, 2), value)


def put(rooms: TransitRooms, room: int, sequence: int, start: int, content: torch.Tensor) -> None:
    rooms.put(room, [(sequence, range(start, start + len(content)))], [content])


def take(rooms: TransitRooms, room: int, *rows: RoomRow) -> list[float]:
    return [float(value) for value in rooms.take(room, rows, torch.float32, 2)[:, 0]]


def test_rows_are_taken_in_the_order_asked_for_and_once() -> None:
    rooms = TransitRooms(6, 4096)
    put(rooms, 5, 1, 0, states(2, 1.0))
    put(rooms, 5, 2, 4, states(3, 2.0))
    put(rooms, 6, 1, 0, states(2, 3.0))
    assert take(rooms, 5, (2, range(4, 7)), (1, range(2))) == [2.0] * 3 + [1.0] * 2
    assert (rooms.rows(5), rooms.rows(6)) == ([], [(1, range(2))])
    with pytest.raises(TransferError, match="room 5 has nothing of tokens 0 to 2 of sequence 1"):
        take(rooms, 5, (1, range(2)))


@pytest.mark.parametrize("row", [(1, range(3)), (1, range(1, 3)), (3, range(2)), (1, range(0, 4, 2))])
def test_rows_of_other_tokens_are_refused_and_nothing_is_taken(row: RoomRow) -> None:
    rooms = TransitRooms(5, 4096)
    put(rooms, 5, 1, 0, states(2, 1.0))
    put(rooms, 5, 2, 0, states(2, 2.0))
    with pytest.raises(TransferError, match="room 5 has nothing of tokens"):
        take(rooms, 5, (2, range(2)), row)
    assert take(rooms, 5, (2, range(2)), (1, range(2))) == [2.0, 2.0, 1.0, 1.0]


def test_a_record_leaves_place_for_the_word_that_ends_them() -> None:
    rooms = TransitRooms(1, 256)
    put(rooms, 1, 1, 0, states(2, 1.0))
    with pytest.raises(TransferError, match="16 bytes beside 128 in a transit room of 256"):
        put(rooms, 1, 2, 0, states(2, 2.0))
    assert rooms.rows(1) == [(1, range(2))]


def test_rooms_are_bounded_and_forget_a_sequence() -> None:
    rooms = TransitRooms(2, 256 + 8)
    put(rooms, 1, 1, 0, states(2, 1.0))
    put(rooms, 1, 1, 0, states(2, 4.0))  # in place of the first
    assert rooms.rows(1) == [(1, range(2))]
    rooms.clear(1)
    put(rooms, 1, 1, 2, states(2, 1.0))
    put(rooms, 1, 2, 0, states(2, 1.0))
    with pytest.raises(TransferError, match="128 bytes beside 264 in a transit room of 264"):
        rooms.check(1, [8])
    with pytest.raises(TransferError, match="8 bytes beside 256 in a transit room of 264"):
        put(rooms, 1, 3, 0, states(1, 1.0))
    rooms.forget(1)
    assert rooms.rows(1) == [(2, range(2))]
    rooms.forget(2)
    assert rooms.used_bytes(1) == 8
    rooms.check(1, [8, 64])


@pytest.mark.parametrize("word", [-1, 1 << 40, 4096])
def test_what_is_no_record_is_refused(word: int) -> None:
    rooms = TransitRooms(1, 4096)
    rooms.view(1, 8).view(np.int64)[0] = word
    with pytest.raises(TransferError, match=f"a record of {word} bytes at 0 of a transit room of 4096"):
        rooms.rows(1)
