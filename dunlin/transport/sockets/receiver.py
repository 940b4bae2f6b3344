"""Takes regions from other nodes straight into the host tier: one listening thread, one per connection.

Only what was announced is taken: the token, the room and every word about the region must be those that were expected,
and the bytes must match the checksum before they are reported. Knows no core and no catalog.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import xxhash

from dunlin.auth.tls_context import MakeContext
from dunlin.kv.region_identity import signed_digest
from dunlin.transport.payload import (
    HEADER_MOST_BYTES,
    LENGTH,
    REFUSED,
    TAKEN,
    TOKEN_BYTES,
    PayloadError,
    RegionHeader,
    decode_header,
)
from dunlin.transport.sockets.blocking import receive_exactly, receive_into
from dunlin.transport.sockets.listener import ConnectionListener

CHUNK_BYTES = 1 << 20

OnReceived = Callable[[int, int, str], None]
"""Called once per expected region: handle, generation, and the error (empty: the bytes are there)."""


@dataclass(slots=True)
class _Expected:
    payload: RegionHeader
    offset_bytes: int
    until_s: float
    is_abandoned: bool = False


class RegionReceiver:
    """Owns the listener and the expected regions. `received` is called from its threads."""

    def __init__(
        self,
        room: memoryview,
        received: OnReceived,
        *,
        host: str = "127.0.0.1",
        tls: MakeContext | None = None,
        most_connections: int = 64,
        patience_s: float = 10.0,
        stall_s: float = 5.0,
    ) -> None:
        """Listen on any port of `host`.

        Args:
            room: the tier's memory.
            received: called once for each expected region.
            host: address to listen on.
            tls: for connections that must show a certificate.
            most_connections: at once, of which a sender may have one for each priority; the next one is closed.
            patience_s: seconds until an expected region must have begun to come.
            stall_s: a connection that brings no byte for so long in the midst of a region is closed.

        Raises:
            OSError: it cannot listen there.
        """
        self._room = room
        self._received = received
        self._tls = tls
        self._patience_s = patience_s
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._expected: dict[bytes, _Expected] = {}
        self._coming: dict[bytes, _Expected] = {}
        self._listener = ConnectionListener(host, 0, name="regions-in", most_connections=most_connections)
        self._listener.start(self._serve, self._give_up_late_ones)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.port

    def expect(self, payload: RegionHeader, offset_bytes: int) -> bytes:
        """Announce a region (its token is ignored) that belongs at `offset_bytes`; the token that must come with it.

        Raises:
            ValueError: it lies outside the tier.
        """
        if offset_bytes < 0 or payload.length_bytes < 0 or offset_bytes + payload.length_bytes > len(self._room):
            raise ValueError(f"{payload.length_bytes} bytes at {offset_bytes} of a tier of {len(self._room)}")
        token = secrets.token_bytes(TOKEN_BYTES)
        wanted = _Expected(replace(payload, token=token), offset_bytes, time.monotonic() + self._patience_s)
        with self._lock:
            self._expected[token] = wanted
        return token

    def abandon(self, token: bytes) -> None:
        """The region is no longer wanted; `received` is still called when nothing writes there any more."""
        with self._lock:
            wanted = self._expected.get(token) or self._coming.get(token)
            if wanted is not None:
                wanted.is_abandoned, wanted.until_s = True, 0.0

    def close(self) -> None:
        """Accept nothing more. Connections end at their next chunk."""
        self._listener.close()

    def _give_up_late_ones(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            late = [token for token, wanted in self._expected.items() if wanted.until_s < now_s]
            found = [self._expected.pop(token) for token in late]
        for wanted in found:
            self._tell(wanted.payload, "abandoned" if wanted.is_abandoned else "nothing came")

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(self._stall_s)
                stream = self._tls().wrap_socket(connection, server_side=True) if self._tls is not None else connection
                with stream:
                    while not self._listener.is_closing and self._take_one(stream):
                        pass
        except (OSError, EOFError, PayloadError):
            pass  # the sender learns it by the end of the connection, the expecting side by its timeout

    def _take_one(self, stream: socket.socket) -> bool:
        """Receive one region; False ends the connection."""
        first = self._wait(stream)
        if not first:
            return False
        (length,) = LENGTH.unpack(first + receive_exactly(stream, LENGTH.size - 1))
        if length > HEADER_MOST_BYTES:
            raise PayloadError(f"a header of {length} bytes")
        payload = decode_header(receive_exactly(stream, length))
        with self._lock:
            wanted = self._expected.pop(payload.token, None)
            if wanted is not None:
                self._coming[payload.token] = wanted
        if wanted is None:
            stream.sendall(REFUSED)
            return False
        detail = "another region than was announced"
        try:
            if wanted.payload == payload:
                detail = self._fill(stream, wanted)
        except (OSError, EOFError) as error:
            detail = f"the connection ended: {error}"
            raise
        finally:
            with self._lock:
                del self._coming[payload.token]
            self._tell(payload if wanted.payload == payload else wanted.payload, detail)
        stream.sendall(REFUSED if detail else TAKEN)
        return not detail

    def _wait(self, stream: socket.socket) -> bytes:
        """Wait for the next frame's first byte without a limit; empty when the connection or this receiver ends."""
        while not self._listener.is_closing:
            try:
                return stream.recv(1)
            except TimeoutError:
                continue
        return b""

    def _fill(self, stream: socket.socket, wanted: _Expected) -> str:
        hasher = xxhash.xxh3_64(wanted.payload.identity)
        at, stop = wanted.offset_bytes, wanted.offset_bytes + wanted.payload.length_bytes
        while at < stop:
            if wanted.is_abandoned or self._listener.is_closing:
                return "abandoned"
            chunk = self._room[at : min(at + CHUNK_BYTES, stop)]
            receive_into(stream, chunk)
            hasher.update(chunk)
            at += len(chunk)
        return (
            ""
            if signed_digest(hasher.intdigest()) == wanted.payload.checksum
            else "the bytes do not match their checksum"
        )

    def _tell(self, payload: RegionHeader, detail: str) -> None:
        self._received(payload.handle, payload.generation, detail)
