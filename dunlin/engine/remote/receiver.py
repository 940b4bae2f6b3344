"""Takes chunks from helpers of other nodes into the own engine's slots: one listening thread, one per connection.

A connection belongs to the life of the engine whose token it showed. Each chunk is written under the peer page, so one
of an earlier life, another layout or a closed room is refused however late it comes. What lies in the slots is hashed
after the copy and compared with what was sent.
"""

import hmac
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dunlin.engine.remote.backends import Backend, Link, LinkSettings
from dunlin.engine.remote.engine_memory import EngineMemory
from dunlin.engine.remote.protocol import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    GREETING_BYTES,
    PEERS_MOST,
    TOKEN_BYTES,
    UNWELCOME,
    WELCOME,
    Answer,
    ProtocolError,
    decode_chunk,
    decode_greeting,
)
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.messages.agent import EngineAgent
from dunlin.transport.sockets.listener import ConnectionListener
from dunlin.wire.security import is_certificate_of

CONNECTIONS_MOST = 2 * PEERS_MOST
"""A peer has two connections: one for KV, one for what a step waits for (peer_lanes.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Served:
    """One life of the engine, and the secret by which its peers are known."""

    agent: EngineAgent
    token: bytes


class ChunkReceiver:
    """Owns the listener and the connections. No peer is welcome before `serve`."""

    def __init__(
        self, host: str, port: int, backend: Backend, settings: LinkSettings, say: Callable[[str], None]
    ) -> None:
        """:raises OSError: it cannot listen there."""
        self._backend = backend
        self._settings = settings
        self._say = say
        self._served: _Served | None = None
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._listener = ConnectionListener(host, port, name="transfers-in", most_connections=CONNECTIONS_MOST)
        self._listener.start(self._serve)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.port

    def serve(self, agent: EngineAgent) -> bytes:
        """Take chunks for this life of the engine, and for no earlier one; the token that peers must show.

        :raises TransferError: the engine's memory is not there.
        """
        EngineMemory(agent).close()
        served = _Served(agent, secrets.token_bytes(TOKEN_BYTES))
        self._served = served
        self._end_links()
        return served.token

    def close(self) -> None:
        """Accept nothing more, and end the connections."""
        self._listener.stop()
        self._end_links()
        self._listener.close()

    def _end_links(self) -> None:
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                link = self._backend.answer(connection, self._settings)
                try:
                    self._take_chunks(link)
                finally:
                    with self._lock:
                        self._links.discard(link)
                    link.close()
        except EOFError:
            pass  # the sender has left
        except (OSError, ProtocolError, TransferError) as error:
            self._say(f"a connection from another node ended: {error or type(error).__name__}")

    def _take_chunks(self, link: Link) -> None:
        served = self._served_to(link)
        if served is None:
            link.send(UNWELCOME)
            return
        memory = EngineMemory(served.agent)
        try:
            with self._lock:
                self._links.add(link)
            link.send(WELCOME)
            staging = np.empty(CHUNK_BYTES, dtype=np.uint8)
            while link.await_bytes(lambda: self._listener.is_closing or self._served is not served):
                link.send(_take(link, memory, staging).encode())
        finally:
            memory.close()

    def _served_to(self, link: Link) -> _Served | None:
        """The life whose token the other side showed; None: it showed none."""
        greeting, served = decode_greeting(link.receive(GREETING_BYTES)), self._served
        names = link.certificate_names()
        is_known = names is None or is_certificate_of(names, "instance", greeting.name)
        if served is None or not is_known or not hmac.compare_digest(greeting.token, served.token):
            self._say(f"refused {greeting.name!r}: it showed {'no valid token' if is_known else 'another certificate'}")
            return None
        return served


def _take(link: Link, memory: EngineMemory, staging: Bytes) -> Answer:
    """Receive one chunk and write it. :raises ProtocolError, OSError, EOFError: nothing more can be read."""
    chunk, checksum = decode_chunk(link.receive(CHUNK_HEADER_BYTES))
    data = staging[: chunk.length_bytes]
    link.receive_into(data.data)
    try:
        found = memory.write(chunk, data)
    except TransferError as error:
        return Answer(chunk.number, detail=str(error))
    if found != checksum:
        return Answer(chunk.number, is_corrupt=True, detail="the bytes in the slots are not those that were sent")
    return Answer(chunk.number)
