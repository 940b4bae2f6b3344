"""What rank 0 tells the others: commands that it has taken in, ends of its transfers, and when to work. No answers."""

import socket
from collections.abc import Iterator
from typing import Any

from dunlin.effects import Address
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.ranks.errors import RankGone
from dunlin.messages.engine import TransferDone
from dunlin.messages.types import Header
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

_COMMAND, _LANDED, _WORK = b"c", b"l", b"w"
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

    def receive(self) -> Iterator[Any]:
        """What was told, in order, for ever: a command, a `TransferDone`, or None where there is work.

        :raises EOFError: rank 0 has ended.
        """
        while data := self._socket.recv(_READ_BYTES):
            for body in self._reader.feed(data):
                yield _decoded(body)
        raise EOFError


def _decoded(body: bytes) -> Any:
    if body[:1] == _WORK:
        return None
    envelope = ENGINE_EVENT if body[:1] == _LANDED else ENGINE_COMMAND
    return envelope.decode(body[1:])[1]
