"""A transit room as a pipe from one engine to another: bytes in order, as many under way as the room holds.

The room begins with words: the exchange that the reader opened it for, the bytes written and read since, and the
exchanges that the writer has given up. The rest is a ring. A writer waits until the room is open for its own exchange,
so what an exchange before left in the room is never read. An exchange that is suspended on both sides may give way to
another one (`PipeReader.set_aside`) and go on later. Exchanges may be given up while they are queued behind the one
that runs, so each has a word among `_GIVEN_UP_WORDS`, which are more than the steps of a queue. One writer and one
reader; the order of their stores is that of x86, and the lock that a writer takes for each piece is a barrier besides.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from dunlin.engine.transfer.host_tier import Bytes

HEADER_BYTES = 512
_EXCHANGE, _WRITTEN, _READ, _GIVEN_UP = range(4)
_GIVEN_UP_WORDS = 32
_PIECE_BYTES = 1 << 20


class PipeReader:
    """The owner's side of a room."""

    def __init__(self, room: Bytes, exchange: int) -> None:
        """Open the room for an exchange: its writer may write from now on."""
        self._words = room[:HEADER_BYTES].view("int64")
        self._ring = room[HEADER_BYTES:]
        self._exchange = exchange
        self._kept = room[:0]
        self._is_open = False
        self.open()

    def open(self) -> None:
        """Let the writer write from now on; again after `set_aside`."""
        if self._is_open:
            return
        self._is_open = True
        self._words[_EXCHANGE] = 0
        self._words[_WRITTEN] = self._words[_READ] = 0
        self._words[_EXCHANGE] = self._exchange

    def set_aside(self) -> None:
        """Take out all that has arrived, for another exchange needs the room; the writer is to rest meanwhile."""
        if self._is_open:
            arrived = np.empty(len(self._kept) + len(self._ring), dtype=np.uint8)
            self._kept = arrived[: self.read_into(arrived)]
            self._is_open = False

    @property
    def is_given_up(self) -> bool:
        """Whether the writer will write no more of this exchange."""
        return int(self._words[_given_up(self._exchange)]) == self._exchange

    def read_into(self, wanted: Bytes) -> int:
        """Take out what has arrived, at most `len(wanted)`; returns how many bytes."""
        kept = min(len(self._kept), len(wanted))
        if kept:
            wanted[:kept], self._kept = self._kept[:kept], self._kept[kept:]
        return kept + (self._read_room(wanted[kept:]) if self._is_open else 0)

    def _read_room(self, wanted: Bytes) -> int:
        read = int(self._words[_READ])
        count = min(int(self._words[_WRITTEN]) - read, len(wanted))
        at = read % len(self._ring)
        first = min(count, len(self._ring) - at)
        wanted[:first] = self._ring[at : at + first]
        wanted[first:count] = self._ring[: count - first]
        self._words[_READ] = read + count
        return count


class PipeWriter:
    """A peer's side of a room. `guard` is entered for each piece: it raises where the room may not be written."""

    def __init__(self, room: Bytes, exchange: int, guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._words = room[:HEADER_BYTES].view("int64")
        self._ring = room[HEADER_BYTES:]
        self._exchange = exchange
        self._guard = guard

    def write(self, content: Bytes) -> int:
        """Put in as much as there is room for now; returns how many bytes.

        :raises TransferError: the room may not be written any more.
        """
        if int(self._words[_EXCHANGE]) != self._exchange:
            return 0
        written = int(self._words[_WRITTEN])
        count = min(int(self._words[_READ]) + len(self._ring) - written, len(content), _PIECE_BYTES)
        if count <= 0:
            return 0
        at = written % len(self._ring)
        first = min(count, len(self._ring) - at)
        with self._guard():
            self._ring[at : at + first] = content[:first]
            self._ring[: count - first] = content[first:count]
            self._words[_WRITTEN] = written + count
        return count

    def give_up(self) -> None:
        """Tell the reader, also one that has not opened the room yet, that no more comes of this exchange.

        :raises TransferError: as `write`.
        """
        with self._guard():
            self._words[_given_up(self._exchange)] = self._exchange


def _given_up(exchange: int) -> int:
    """The word that says whether the exchange is given up."""
    return _GIVEN_UP + exchange % _GIVEN_UP_WORDS
