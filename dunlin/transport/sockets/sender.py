"""Sends regions of the host tier to other nodes: one thread, the most urgent first, one connection per receiver kept.

A connection that broke is opened again once; what fails then is reported, and may be submitted again. Knows no core
and no catalog; the bytes are sent as they are, and the receiver judges them.
"""

import contextlib
import itertools
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.messages.types import Priority
from dunlin.transport.payload import TAKEN, RegionHeader
from dunlin.transport.sockets.blocking import receive_exactly

CHUNK_BYTES = 1 << 20

OnSent = Callable[[int, str], None]
"""Called once per parcel: its ticket, and the error (empty: the receiver has it)."""


@dataclass(frozen=True, slots=True)
class RegionSend:
    """`payload.length_bytes` from `offset_bytes` of the tier, for the receiver at `endpoint` ("host:port").

    `server_name` is the name in the certificate that the receiver must show, with TLS.
    """

    ticket: int
    endpoint: str
    server_name: str
    payload: RegionHeader
    offset_bytes: int


@dataclass(order=True, slots=True)
class _Queued:
    priority: int
    order: int
    parcel: RegionSend | None = field(compare=False)


class RegionSender:
    """Owns the thread, its queue and its connections. `sent` is called from that thread."""

    def __init__(
        self,
        room: memoryview,
        sent: OnSent,
        *,
        tls: ssl.SSLContext | None = None,
        most_waiting: int = 4096,
        stall_s: float = 5.0,
    ) -> None:
        self._room = room
        self._sent = sent
        self._tls = tls
        self._stall_s = stall_s
        self._queue: queue.PriorityQueue[_Queued] = queue.PriorityQueue(most_waiting)
        self._orders = itertools.count()
        self._streams: dict[str, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name="regions-out", daemon=True)
        self._thread.start()

    def submit(self, parcel: RegionSend, priority: Priority) -> bool:
        """Queue a parcel; False when too many wait."""
        try:
            self._queue.put_nowait(_Queued(priority, next(self._orders), parcel))
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Finish the parcel that is being sent, and send no more."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(_Queued(-1, 0, None))
        self._thread.join(2 * self._stall_s)
        for stream in self._streams.values():
            stream.close()

    def _run(self) -> None:
        while (parcel := self._queue.get().parcel) is not None:
            self._sent(parcel.ticket, self._send(parcel))

    def _send(self, parcel: RegionSend) -> str:
        """Send one parcel; returns the error, empty for none.

        A kept connection may have ended long ago: then it is sent once more over a new one.
        """
        kept = self._streams.pop(parcel.endpoint, None)
        if kept is not None:
            with contextlib.suppress(OSError, EOFError):
                return self._over(kept, parcel)
            kept.close()
        try:
            stream = self._connect(parcel)
        except (OSError, ValueError) as error:
            return f"{parcel.endpoint} cannot be reached: {error}"
        try:
            return self._over(stream, parcel)
        except (OSError, EOFError) as error:
            stream.close()
            return f"{parcel.endpoint} ended the connection: {error}"

    def _over(self, stream: socket.socket, parcel: RegionSend) -> str:
        stream.sendall(parcel.payload.encode())
        stop = parcel.offset_bytes + parcel.payload.length_bytes
        for at in range(parcel.offset_bytes, stop, CHUNK_BYTES):
            stream.sendall(self._room[at : min(at + CHUNK_BYTES, stop)])
        if receive_exactly(stream, 1) != TAKEN:
            stream.close()
            return f"{parcel.endpoint} refused it"
        self._streams[parcel.endpoint] = stream
        return ""

    def _connect(self, parcel: RegionSend) -> socket.socket:
        host, _, port = parcel.endpoint.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=self._stall_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=parcel.server_name)
        except OSError:
            plain.close()
            raise
