"""The page of metrics, over HTTP in the service's own event loop, so that a scrape sees one moment."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError

from dunlin.messages.fleet import FleetStatus
from dunlin.telemetry.metrics import MetricFamily, metric_families
from dunlin.telemetry.prometheus import CONTENT_TYPE, render_metrics
from dunlin.wire.errors import StartError

CONNECTION_S = 10.0
"""The longest life of a connection: its request, the page, and the peer's reading of it."""
MAX_CONNECTIONS = 64
SHUTDOWN_S = 1.0
"""For pages that are being made when the service stops."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Source = Callable[[], Awaitable[FleetStatus]]


class MetricsServer:
    """Answers `GET /metrics`, one request per connection. Owns the listening socket.

    A connection is cut after `CONNECTION_S`, whatever its peer does; above `MAX_CONNECTIONS` one gets 503 at once.
    """

    def __init__(self) -> None:
        self._source: Source | None = None
        self._more: Callable[[], Sequence[MetricFamily]] = tuple
        application = web.Application()
        application.router.add_get("/metrics", self._page)
        application.on_response_prepare.append(_close_after)
        # A page whose client is gone is not completed.
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
        self._listener: asyncio.Server

    @classmethod
    async def open(cls, listen: str) -> "MetricsServer":
        """Listen on `host:port`; port 0 means any.

        Raises:
            StartError: the port is taken.
        """
        door = cls()
        host, _, port = listen.rpartition(":")
        await door._runner.setup()
        try:
            door._listener = await asyncio.get_running_loop().create_server(door._accept, host.strip("[]"), int(port))
        except OSError as error:
            raise StartError(
                f"no page of metrics on {listen}: {error.strerror}; choose another --metrics-port"
            ) from error
        return door

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many are open, those above the limit left out."""
        return len(self._server.connections)

    def set_source(self, source: Source, more: Callable[[], Sequence[MetricFamily]] = tuple) -> None:
        """From now on pages are made from what `source` returns, and `more`; until then the answer is 503."""
        self._source = source
        self._more = more

    async def close(self) -> None:
        """Listen no more, and close what is open."""
        self._listener.close()
        await self._runner.cleanup()

    @property
    def _server(self) -> web.Server:
        assert self._runner.server is not None, "it is there from the runner's setup on"
        return self._runner.server

    def _accept(self) -> asyncio.Protocol:
        return _Connection(self._server) if self.connections < MAX_CONNECTIONS else _Refusal()

    async def _page(self, request: web.Request) -> web.Response:
        if self._source is None:
            return web.Response(status=503, text="starting\n")
        page = render_metrics([*metric_families(await self._source()), *self._more()])
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})


class _Connection(web.RequestHandler):
    """aiohttp's connection, with a bound on its whole life: aiohttp has none for a peer that does not read."""

    __slots__ = ("_end",)

    def __init__(self, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=cast(Any, None))
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._end = self._loop.call_later(CONNECTION_S, cast(asyncio.Transport, transport).abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Answer a request that is no HTTP without a log line: ports are scanned."""
        if not isinstance(kw.get("exc_info"), HttpProcessingError):
            super().log_exception(*args, **kw)


class _Refusal(asyncio.Protocol):
    """Answer a connection above the limit before its request, which may never come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        wire.write(REFUSAL)
        wire.close()


async def _close_after(request: web.Request, response: web.StreamResponse) -> None:
    """The time between scrapes is longer than a connection lives."""
    response.headers["Connection"] = "close"
    response.force_close()
