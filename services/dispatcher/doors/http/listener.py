"""Accepts connections for the HTTP door: TLS handshakes with a deadline, and 503 for connections above the limit.

asyncio's own server reports a connection only after its TLS handshake; this one counts it from the accept on.
"""

import asyncio
import socket
from typing import cast

from dunlin.auth.tls_context import MakeContext
from services.dispatcher.doors.http.connections import (
    Connections,
    HttpConnection,
    half_close,
    raw_response,
    too_many_connections,
)

MAX_REFUSALS = 64
"""Connections above the limit that are answered at a time; further ones are closed without an answer."""
REFUSAL_TIMEOUT_S = 2.0
"""Seconds for a connection above the limit to send its request and to read the answer."""
ACCEPT_RETRY_S = 0.1
"""Seconds to wait after an accept that failed: without a free descriptor the next one fails as well."""


class ConnectionRefusals:
    """Owns the connections above the limit until they have got their 503."""

    def __init__(self) -> None:
        self._open: dict[RefusingProtocol, None] = {}

    def create(self) -> "RefusingProtocol | None":
        """The protocol of a connection above the limit; None: too many are being answered already."""
        if len(self._open) >= MAX_REFUSALS:
            return None
        refusal = RefusingProtocol(self)
        self._open[refusal] = None
        return refusal

    def remove(self, refusal: "RefusingProtocol") -> None:
        """The connection is closed, or its handshake failed."""
        self._open.pop(refusal, None)


class RefusingProtocol(asyncio.Protocol):
    """Answers the first bytes of a connection, whatever they are, with 503."""

    def __init__(self, refusals: ConnectionRefusals) -> None:
        self._refusals = refusals
        self._wire: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request: clients may lose an answer that comes before they have sent one."""
        self._wire = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(REFUSAL_TIMEOUT_S, self._wire.abort)

    def data_received(self, data: bytes) -> None:
        """Answer the first bytes; later ones are ignored."""
        if self._wire is None:
            return
        self._wire.write(raw_response(too_many_connections()))
        half_close(self._wire)
        self._wire = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """The peer closed the connection, or it was aborted."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._refusals.remove(self)


class Listener:
    """Owns a listening socket, and the TLS handshakes in progress."""

    def __init__(self, listening: socket.socket, connections: Connections, tls: MakeContext | None) -> None:
        self._listening = listening
        self._connections = connections
        self._tls = tls
        self._refusals = ConnectionRefusals()
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept connections."""
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(), name="HTTP accept")

    async def stop(self) -> None:
        """Close the listening socket and cancel the handshakes; open connections stay."""
        tasks = [task for task in (self._accepting, *self._handshakes) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._listening)
            except OSError as error:
                self._connections.record_refusal("accept", "", f"cannot accept: {error.strerror or error}")
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            self._admit_socket(sock, str(address[0]))

    def _admit_socket(self, sock: socket.socket, peer: str) -> None:
        protocol: HttpConnection | RefusingProtocol | None
        if self._connections.has_room:
            protocol, within_s = self._connections.create(), self._connections.config.header_timeout_s
        else:
            most = self._connections.config.max_connections
            self._connections.record_refusal(
                "connection_limit", peer, f"refused: {most} connections are open, the most"
            )
            protocol, within_s = self._refusals.create(), REFUSAL_TIMEOUT_S
        if protocol is None:
            sock.close()
            return
        task = asyncio.create_task(self._handshake(sock, protocol, peer, within_s))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(
        self, sock: socket.socket, protocol: HttpConnection | RefusingProtocol, peer: str, within_s: float
    ) -> None:
        """Connect the socket to its protocol, after a TLS handshake where TLS is used."""
        loop = asyncio.get_running_loop()
        tls = self._tls() if self._tls is not None else None
        timeout_s = within_s if tls is not None else None
        try:
            await loop.connect_accepted_socket(lambda: protocol, sock, ssl=tls, ssl_handshake_timeout=timeout_s)
        except OSError as error:
            self._discard(protocol)
            if isinstance(protocol, HttpConnection):
                self._connections.record_refusal("tls_handshake", peer, f"no TLS handshake: {error}")
        except BaseException:
            self._discard(protocol)
            raise

    def _discard(self, protocol: HttpConnection | RefusingProtocol) -> None:
        if isinstance(protocol, HttpConnection):
            self._connections.remove(protocol)
        else:
            self._refusals.remove(protocol)
