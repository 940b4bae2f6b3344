"""The ways between two transfer helpers, by the name in `instance.peer_transfers.between_nodes`.

A backend carries the bytes of `protocol.py` between two processes, in order. One that writes into registered memory
itself (NIXL) would have its own pair of sender and receiver threads; its line would stand here as well.
"""

import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dunlin.auth.tls_context import MakeContext
from dunlin.transport.sockets.blocking import receive_exactly, receive_into
from dunlin.transport.sockets.connections import connect
from dunlin.wire.security import certificate_names

_SEND_BUFFER_BYTES = 512 << 10
_TICK_MS = 250


class Link(Protocol):
    """One connection to another transfer helper. Every method raises OSError or EOFError where it has ended."""

    def send(self, *parts: bytes | memoryview) -> None:
        """Send all of the parts, one behind the other."""
        ...

    def receive(self, count: int) -> bytes:
        """Wait for so many bytes."""
        ...

    def receive_into(self, view: memoryview) -> None:
        """Wait until the view is full."""
        ...

    def await_bytes(self, is_over: Callable[[], bool]) -> bool:
        """Wait for the next bytes, or the end, for as long as it takes; False: `is_over`."""
        ...

    def certificate_names(self) -> tuple[str, ...] | None:
        """The names in the other side's certificate; None: the connection is plain text."""
        ...

    def close(self) -> None:
        """End the connection, from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """`tls` for the side that is meant; None: plain text. `stall_s`: as in `HelperOptions`."""

    tls: MakeContext | None
    stall_s: float


class SocketLink:
    """A TCP connection, with TLS or without."""

    def __init__(self, stream: socket.socket, stall_s: float) -> None:
        self._stream = stream
        self._poll = select.poll()  # `select` takes no descriptor beyond 1023
        self._poll.register(stream, select.POLLIN)
        stream.settimeout(stall_s)

    def send(self, *parts: bytes | memoryview) -> None:
        """See `Link`."""
        for part in parts:
            self._stream.sendall(part)

    def receive(self, count: int) -> bytes:
        """See `Link`."""
        return receive_exactly(self._stream, count)

    def receive_into(self, view: memoryview) -> None:
        """See `Link`."""
        receive_into(self._stream, view)

    def await_bytes(self, is_over: Callable[[], bool]) -> bool:
        """See `Link`."""
        while not is_over():
            if isinstance(self._stream, ssl.SSLSocket) and self._stream.pending():
                return True
            if self._poll.poll(_TICK_MS):
                return True
        return False

    def certificate_names(self) -> tuple[str, ...] | None:
        """See `Link`."""
        return certificate_names(self._stream.getpeercert()) if isinstance(self._stream, ssl.SSLSocket) else None

    def close(self) -> None:
        """See `Link`."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._stream, socket.SHUT_RDWR)  # wakes the thread that waits in it
        with contextlib.suppress(OSError):
            self._stream.close()


def dial(endpoint: str, server_name: str, settings: LinkSettings) -> Link:
    """A connection to a helper that listens at `endpoint`, and with TLS shows a certificate of `server_name`.

    :raises OSError, ValueError: it cannot be reached.
    """
    stream = connect(endpoint, server_name, settings.tls, settings.stall_s)
    _tune(stream)
    return SocketLink(stream, settings.stall_s)


def answer(stream: socket.socket, settings: LinkSettings) -> Link:
    """A connection that was accepted. :raises OSError: the handshake failed."""
    stream.settimeout(settings.stall_s)
    _tune(stream)
    if settings.tls is not None:
        stream = settings.tls().wrap_socket(stream, server_side=True)
    return SocketLink(stream, settings.stall_s)


def _tune(stream: socket.socket) -> None:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


@dataclass(frozen=True, slots=True)
class Backend:
    """How one backend opens connections."""

    dial: Callable[[str, str, LinkSettings], Link]
    answer: Callable[[socket.socket, LinkSettings], Link]


BACKENDS = {
    "sockets": Backend(dial, answer),
}
