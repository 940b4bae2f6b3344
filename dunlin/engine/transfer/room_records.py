"""What lies in a transit room: a record for each row of a step, one after another, so that a peer's engine can read it.

A record is a header of eight 64-bit words and the row's content, both aligned to 64 bytes; a word 0 follows the last.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes

HEADER_BYTES = 64
END_BYTES = 8


@dataclass(frozen=True, slots=True)
class RoomRecord:
    """A row's content in a room: of the tokens at positions `tokens` of `sequence`. `at`: where its header lies."""

    sequence: int
    tokens: range
    at: int
    content: Bytes
    is_taken: bool

    @property
    def end(self) -> int:
        """Where the next header lies."""
        return self.at + record_bytes(len(self.content))


def record_bytes(content_bytes: int) -> int:
    """What a record takes of a room."""
    return HEADER_BYTES + -(-content_bytes // HEADER_BYTES) * HEADER_BYTES


def read_records(room: Bytes) -> Iterator[RoomRecord]:
    """The records of a room, taken ones included. :raises TransferError: what lies there is none."""
    at = 0
    while size := int(_words(room, at, 1)[0]):
        if size < 0 or at + record_bytes(size) + END_BYTES > len(room):
            raise TransferError(f"a record of {size} bytes at {at} of a transit room of {len(room)}")
        _, sequence, start, stop, stride, is_taken = map(int, _words(room, at, 6))
        tokens = range(start, stop, max(stride, 1))
        content = room[at + HEADER_BYTES : at + HEADER_BYTES + size]
        yield RoomRecord(sequence, tokens, at, content, bool(is_taken))
        at += record_bytes(size)


def end_of_records(room: Bytes) -> int:
    """Where the next record begins. :raises TransferError: as `read_records`."""
    return max((record.end for record in read_records(room)), default=0)


def write_record(room: Bytes, at: int, sequence: int, tokens: range, content: Bytes) -> int:
    """Append a record; returns where the next one begins. :raises TransferError: it does not fit."""
    end = at + record_bytes(len(content))
    if not len(content) or end + END_BYTES > len(room):
        raise TransferError(f"{len(content)} bytes beside {at} in a transit room of {len(room)}")
    room[at + HEADER_BYTES : at + HEADER_BYTES + len(content)] = content
    _words(room, end, 1)[0] = 0
    _words(room, at, 6)[:] = (len(content), sequence, tokens.start, tokens.stop, tokens.step, 0)
    return end


def take_records(room: Bytes, records: list[RoomRecord]) -> None:
    """The records will not be read again; when all of a room are taken it is empty."""
    for record in records:
        _words(room, record.at, 6)[5] = 1
    if all(record.is_taken for record in read_records(room)):
        clear_records(room)


def clear_records(room: Bytes) -> None:
    """Forget what lies in the room."""
    _words(room, 0, 1)[0] = 0


def _words(room: Bytes, at: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return room[at : at + 8 * count].view(np.int64)
