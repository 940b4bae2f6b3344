"""The connections of the HTTP door: their number, and the deadlines for what their peers have begun.

Knows no path and no request's content; `listener.py` accepts connections, aiohttp reads and writes.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError, RawRequestMessage

from services.dispatcher.doors.http.config import HttpConfig
from services.dispatcher.doors.http.errors import response_of, to_http_error
from services.dispatcher.doors.http.parse_turns import SLICE_BYTES, ParseTurns
from services.dispatcher.doors.http.peer_log import PeerLog
from services.dispatcher.doors.openai.errors import INVALID_REQUEST, SERVER_ERROR, HttpError
from services.dispatcher.doors.openai.reply import error_body

CLOSE_TIMEOUT_S = 5.0
"""Seconds for the rest of a response when a connection is closed; then it is aborted."""
PEER_ERRORS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Exceptions that the peer caused: they are logged in one line, without a traceback."""
OnConnectionRefused = Callable[[str], None]


class Connections:
    """Owns the open connections. `refused` is called with the kind of each refusal outside a request:
    `connection_limit`, `tls_handshake`, `header_timeout`, `write_timeout`, `malformed`, `accept`.
    """

    def __init__(self, server: web.Server, config: HttpConfig, refused: OnConnectionRefused) -> None:
        self.config = config
        self.parse_turns = ParseTurns(asyncio.get_running_loop().call_soon)
        self._server = server
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._peer_log = PeerLog(self._loop.time)
        self._open: dict[HttpConnection, None] = {}

    @property
    def open(self) -> int:
        """The number of connections, those in a TLS handshake included."""
        return len(self._open)

    @property
    def serving(self) -> int:
        """The number of connections with a request in its handler."""
        return len([connection for connection in self._open if connection.is_serving])

    @property
    def has_room(self) -> bool:
        """Whether one more connection is allowed."""
        return len(self._open) < self.config.max_connections

    def create(self) -> "HttpConnection":
        """The protocol of a new connection, which counts until `remove`."""
        connection = HttpConnection(self, self._server, self._loop)
        self._open[connection] = None
        return connection

    def remove(self, connection: "HttpConnection") -> None:
        """The connection is closed, or its handshake failed."""
        self._open.pop(connection, None)

    def record_refusal(self, kind: str, peer: str, text: str) -> None:
        """Count a peer's fault, and log it at the rate of `PeerLog`."""
        self._refused(kind)
        self._peer_log.warn(peer, text)


class HttpConnection(web.RequestHandler):
    """aiohttp's connection with a deadline for each thing that it waits for, and with errors in JSON.

    One timer runs while the peer has to act: to complete a head, to begin the next request, to close. Another one runs
    while the peer does not read. None runs while a request is in its handler, which has its own limits.
    """

    __slots__ = (
        "_config", "_connections", "_deadline", "_heard", "_idle", "_serving", "_stall", "_unparsed", "_wire"
    )  # fmt: skip

    def __init__(self, connections: Connections, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        # `bodies.py` decompresses: there the kinds of errors can be told apart.
        super().__init__(
            server,
            loop=loop,
            access_log=cast(Any, None),
            auto_decompress=False,
            lingering_time=connections.config.header_timeout_s,
        )
        self._connections = connections
        self._config = connections.config
        self._wire: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._serving: web.BaseRequest | None = None
        self._idle = False
        self._heard = False
        self._unparsed = memoryview(b"")

    @property
    def is_serving(self) -> bool:
        """Whether a request is with its handler."""
        return self._serving is not None

    # --- events of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wire = cast(asyncio.Transport, transport)
        self._set_deadline(self._config.header_timeout_s, self._on_header_timeout)

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp calls it so to parse what its parser has kept
            self._parse(data)
            return
        if self._serving is None:
            self._heard = True
            if self._idle:
                self._idle = False
                self._set_deadline(self._config.header_timeout_s, self._on_header_timeout)
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._connections.parse_turns.add(self)
        if self._unparsed:
            self._pause_transport_reading()

    def parse_slice(self) -> bool:
        """See `SliceParser`."""
        if self._is_paused():
            return False  # aiohttp calls `_resume_transport_reading` when it takes more
        part, self._unparsed = self._unparsed[:SLICE_BYTES], self._unparsed[SLICE_BYTES:]
        self._parse(bytes(part))
        if self._unparsed:
            return not self._is_paused()
        if not self._is_paused():
            super()._resume_transport_reading()
        return False

    def _resume_transport_reading(self) -> None:
        if self._unparsed:
            self._connections.parse_turns.add(self)
        else:
            super()._resume_transport_reading()

    def _is_paused(self) -> bool:
        return self._reading_paused or self._buffer_paused

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if self._serving is not None and self._messages and self._is_broken():
            # The parser failed inside the body: without this the handler would wait for the rest of it.
            self._serving.content.set_exception(web.RequestPayloadError("the body's transfer coding is broken"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire = None
        self._unparsed = memoryview(b"")
        self._connections.parse_turns.remove(self)
        self._set_deadline()
        self._cancel_write_timeout()
        self._connections.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._loop.call_later(self._config.write_timeout_s, self._on_write_timeout)

    def resume_writing(self) -> None:
        self._cancel_write_timeout()
        super().resume_writing()

    # --- calls of aiohttp ---

    def on_request_begun(self, request: web.BaseRequest) -> None:
        """A head is complete: no deadline for the peer while the request is in its handler."""
        self._serving = request
        self._idle = self._heard = False
        self._set_deadline()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the handler's response, or an exception that was raised before any middleware (an unknown Expect)."""
        if isinstance(resp, web.HTTPException):
            resp = response_of(to_http_error(resp))
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._serving = None
            self._idle = True
            self._set_deadline(self._config.idle_timeout_s, self.force_close)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP with an error in JSON, and close the connection."""
        if isinstance(exc, HttpProcessingError):
            error = to_http_error(exc)
            self._refuse("malformed", f"{error.status}: {error}")
        else:
            error = to_http_error(exc if isinstance(exc, Exception) else web.HTTPInternalServerError())
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: it cannot become another one")
        response = response_of(error)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a traceback for a fault of the server, one bounded line for a fault of the peer."""
        error = kw.get("exc_info")
        if isinstance(error, PEER_ERRORS):
            self._refuse("malformed", str(error))
        else:
            super().log_exception(*args, **kw)

    def force_close(self) -> None:
        """Close; if the peer does not read the rest of the response, abort after `CLOSE_TIMEOUT_S`."""
        super().force_close()
        if self._wire is not None:
            self._set_deadline(CLOSE_TIMEOUT_S, self._wire.abort)

    # --- deadlines ---

    def _set_deadline(self, seconds: float | None = None, then: Callable[[], None] | None = None) -> None:
        """Replace the deadline by one in `seconds` that calls `then`; without arguments there is none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None or then is None else self._loop.call_later(seconds, then)

    def _on_header_timeout(self) -> None:
        text = f"the head of the request did not come within {self._config.header_timeout_s:g} s"
        self._refuse("header_timeout", text)
        if self._wire is None or not self._heard:
            # No byte of a request came: a client that keeps the connection for later must not find a response in it.
            self.force_close()
            return
        self.close()
        self._wire.write(raw_response(HttpError(408, error_body(text, INVALID_REQUEST, None, "request_timeout"))))
        half_close(self._wire)
        self._set_deadline(CLOSE_TIMEOUT_S, self._wire.abort)

    def _on_write_timeout(self) -> None:
        self._stall = None
        self._refuse("write_timeout", f"it read nothing for {self._config.write_timeout_s:g} s")
        if self._wire is not None:
            self._wire.abort()

    def _cancel_write_timeout(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _is_broken(self) -> bool:
        return not isinstance(self._messages[-1][0], RawRequestMessage)

    def _refuse(self, kind: str, text: str) -> None:
        self._connections.record_refusal(kind, peer_of(self._wire), text)


def with_request_hook(server: web.Server) -> web.Server:
    """Patch the server to call each connection's `on_request_begun` when a request of it begins."""
    make = server.request_factory

    def begin(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        request = make(message, payload, protocol, writer, task)
        protocol.on_request_begun(request)
        return request

    server.request_factory = begin
    return server


def raw_response(error: HttpError) -> bytes:
    """An error response as bytes, for a connection without a request; the connection is closed after it."""
    body = json.dumps(error.body).encode()
    headers = {**error.headers, "Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {error.status} {web.Response(status=error.status).reason}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def half_close(wire: asyncio.Transport) -> None:
    """End the writing side. The reading side stays open until the peer closes: closing a socket with unread bytes
    resets the connection, and the peer may lose the response.
    """
    if wire.can_write_eof():
        wire.write_eof()
    else:
        wire.close()


def too_many_connections() -> HttpError:
    """The error for a connection above the limit."""
    text = "too many connections are open here; come again, and use one connection for several requests"
    return HttpError(503, error_body(text, SERVER_ERROR, None, "too_many_connections"), {"Retry-After": "1"})


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """The peer's host for a log line; empty if unknown."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if isinstance(name, tuple) else ""
