"""What rank 0 tells the others: commands that it has taken in, ends of its transfers, KV to copy, and when to work. No
answers.
"""

import socket
from collections import deque
from typing import Any

from dunlin.effects import Address
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.ranks.errors import RankGone
from dunlin.engine.ranks.part_copies import PartCopy
from dunlin.messages.engine import TransferDone
from dunlin.messages.types import Header
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

_COMMAND, _LANDED, _COPY, _WORK = b"c", b"l", b"k", b"w"
_HEADER = Header(Address("engine", "rank-0", 1))
_READ_BYTES = 1 << 20
_KEPT_BYTES = 1 << 20


class RankSender:
    """Rank 0's way to the others. Owns the sockets; what is told is kept until there is work."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._kept = bytearray()

    def tell(self, message: Any) -> None:
        """A command was taken in, or a transfer has ended."""
        if isinstance(message, TransferDone):
            self._kept += frame(_LANDED + ENGINE_EVENT.encode(_HEADER, message))
        else:
            self._kept += frame(_COMMAND + ENGINE_COMMAND.encode(_HEADER, message))
        if len(self._kept) > _KEPT_BYTES:
            self._send()

    def tell_copy(self, copy: PartCopy) -> None:
        """To be done at once. :raises RankGone: a rank has ended."""
        self._kept += frame(_COPY + copy.encode())
        self._send()

    def tell_work(self) -> None:
        """A turn begins."""
        self._kept += frame(_WORK)
        self._send()

    def _send(self) -> None:
        """:raises RankGone: a rank has ended."""
        try:
            for each in self._sockets:
                each.sendall(self._kept)
        except OSError as error:
            raise RankGone(f"a rank of this engine has ended: {error}") from None
        self._kept.clear()


class RankReceiver:
    """Another rank's side of it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = FrameReader()
        self._bodies: deque[bytes] = deque()

    def next(self) -> Any:
        """What was told next: a command, a `TransferDone`, a `PartCopy`, or None where there is work. Waits for it.

        :raises EOFError: rank 0 has ended.
        """
        while not self._bodies:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise EOFError
            self._bodies.extend(self._reader.feed(data))
        return _decoded(self._bodies.popleft())


def _decoded(body: bytes) -> Any:
    if body[:1] == _WORK:
        return None
    if body[:1] == _COPY:
        return PartCopy.decode(body[1:])
    envelope = ENGINE_EVENT if body[:1] == _LANDED else ENGINE_COMMAND
    return envelope.decode(body[1:])[1]
