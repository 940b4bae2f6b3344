"""The page of metrics: a few lines of HTTP in the service's own event loop, so that a scrape sees one moment."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dunlin.messages.fleet import FleetStatus
from dunlin.telemetry.exposition import CONTENT_TYPE, render
from dunlin.telemetry.metrics import Family, families
from dunlin.wire.errors import StartError

REQUEST_BYTES = 16 << 10
REQUEST_S = 5.0
CLOSE_S = 5.0
MOST_CONNECTIONS = 64

Source = Callable[[], Awaitable[FleetStatus]]


class MetricsDoor:
    """Answers `GET /metrics`, one request per connection. Owns the listening socket.

    A connection lasts `REQUEST_S` and `CLOSE_S` at most, whatever its peer does; above `MOST_CONNECTIONS` one is told
    503 at once.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._source: Source | None = None
        self._more: Callable[[], Sequence[Family]] = tuple
        self._server: asyncio.Server

    @classmethod
    async def open(cls, listen: str) -> "MetricsDoor":
        """Listen on `host:port`; port 0 means any.

        Raises:
            StartError: the port is taken.
        """
        door = cls()
        host, _, port = listen.rpartition(":")
        try:
            door._server = await asyncio.start_server(door._serve, host.strip("[]"), int(port), limit=REQUEST_BYTES)
        except OSError as error:
            raise StartError(
                f"no page of metrics on {listen}: {error.strerror}; choose another --metrics-port"
            ) from error
        return door

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.sockets[0].getsockname()[1])

    def answer_from(self, source: Source, more: Callable[[], Sequence[Family]] = tuple) -> None:
        """From now on pages are made from what `source` returns, and `more`; until then the answer is 503."""
        self._source = source
        self._more = more

    async def close(self) -> None:
        """Listen no more."""
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.connections >= MOST_CONNECTIONS:
            writer.write(_page(b"503 Service Unavailable", b"too many connections\n", more="Retry-After: 1\r\n"))
            writer.close()
            return
        self.connections += 1
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.split(b"\r\n", 1)[0]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that is too slow, too long or gone gets nothing
        finally:
            await _closed(writer)
            self.connections -= 1

    async def _answer(self, line: bytes) -> bytes:
        words = line.split()
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _page(b"405 Method Not Allowed", b"only GET /metrics\n")
        if words[1].split(b"?")[0] != b"/metrics":
            return _page(b"404 Not Found", b"look at /metrics\n")
        if self._source is None:
            return _page(b"503 Service Unavailable", b"starting\n")
        page = render([*families(await self._source()), *self._more()])
        return _page(b"200 OK", page if words[0] == b"GET" else b"", CONTENT_TYPE)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close; a peer that does not take the page is cut, since a close waits for what is still to be sent."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()


def _page(status: bytes, body: bytes, content_type: str = "text/plain; charset=utf-8", more: str = "") -> bytes:
    head = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    return b"HTTP/1.1 " + status + b"\r\n" + head.encode() + body
