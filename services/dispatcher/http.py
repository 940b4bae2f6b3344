"""The HTTP door: OpenAI's paths, health and metrics. Routes and reads; `http_answer.py` answers."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

import dunlin
from dunlin.telemetry.exposition import CONTENT_TYPE
from dunlin.wire.errors import StartError
from services.dispatcher.again import again_of
from services.dispatcher.callers import Callers, as_tenant
from services.dispatcher.door import Door
from services.dispatcher.http_access import CALL, CallMiddleware, call_of
from services.dispatcher.http_answer import Answer
from services.dispatcher.http_config import HttpConfig
from services.dispatcher.http_connections import Connections, Refused, watched
from services.dispatcher.http_cors import Origins
from services.dispatcher.http_errors import not_found, shape_errors
from services.dispatcher.http_listener import Listener
from services.dispatcher.http_paths import Paths
from services.dispatcher.http_rates import rate_headers
from services.dispatcher.http_receive import read_body
from services.dispatcher.openai_reply import ChatReply, CompletionReply
from services.dispatcher.openai_request import Asked
from services.dispatcher.openapi import document
from services.dispatcher.preprocess import BodyKind, Preprocessed
from services.dispatcher.quotas import Usage

__all__ = ["HttpConfig", "HttpDoor", "bind"]

SHUTDOWN_S = 0.5
FOR_EVERYBODY = ("/health", "/metrics", "/openapi.json", "/version")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any. Made before anything else, so that a taken port is the first thing to show.

    Raises:
        StartError: the port is taken, or the host is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=1024)
    except OSError as error:
        text = f"cannot listen for HTTP on {host}:{port}: {error.strerror or error}; choose another"
        raise StartError(text) from error


class HttpDoor:
    """Owns the HTTP server on a socket that `bind` made. `tls` makes it HTTPS.

    `usage` tells what a tenant has left of its quotas now; `refused` is called as `Connections` says.
    """

    connections: Connections
    _listener: Listener

    def __init__(
        self,
        door: Door,
        callers: Callers,
        listening: socket.socket,
        can_serve: Callable[[], bool],
        clock: Callable[[], float],
        config: HttpConfig | None = None,
        tls: ssl.SSLContext | None = None,
        usage: Callable[[str], Usage] = lambda tenant: Usage(),
        refused: Refused = lambda kind: None,
    ) -> None:
        self._door = door
        self._callers = callers
        self._tls = tls
        self._listening = listening
        self._config = config or HttpConfig()
        self._can_serve = can_serve
        self._clock = clock
        self._created = int(clock())
        self._usage = usage
        self._refused = refused
        self._runner = web.AppRunner(self._application(), handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)

    async def start(self) -> None:
        """Answer."""
        await self._runner.setup()
        assert self._runner.server is not None
        self.connections = Connections(watched(self._runner.server), self._config, self._refused)
        self._listener = Listener(self._listening, self.connections, self._tls)
        self._listener.start()

    async def stop(self) -> None:
        """Stop listening and end what runs."""
        await self._listener.stop()
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        access = CallMiddleware(self._door)
        routes = [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            web.post("/v1/completions", self._completions),
            web.post("/v1/chat/completions", self._chat),
            web.get("/openapi.json", self._openapi),
            web.get("/health", self._health),
            web.get("/metrics", self._metrics),
            web.get("/version", self._version),
        ]
        origins = Origins(self._config.origins)
        paths = Paths((route.method, route.path.replace(":.+", "")) for route in routes)
        application = web.Application(
            middlewares=[access.follow, shape_errors, access.note, origins.guard, self._know_caller, paths.guard],
            client_max_size=self._config.max_body_bytes,
        )
        application.on_response_prepare.append(origins.prepare)
        application.on_response_prepare.append(self._tell_rates)
        application.add_routes(routes)
        return application

    @web.middleware
    async def _know_caller(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Ask for the key before a body is read. Health, metrics and documents are for everybody."""
        if request.path not in FOR_EVERYBODY:
            call_of(request).tenant = self._tenant(request) or ""
        return await handler(request)

    async def _tell_rates(self, request: web.Request, response: web.StreamResponse) -> None:
        """Answers to requests that a quota counts say what is left of it, as it is when they begin."""
        call = request.get(CALL)
        if call is not None and call.tenant and request.method == "POST":
            response.headers.update(rate_headers(self._usage(call.tenant)))

    def _tenant(self, request: web.Request) -> str | None:
        return self._callers.tenant(request.headers.get("Authorization"))

    def _of_caller(self, request: web.Request, asked: Asked) -> Asked:
        return replace(asked, settings=as_tenant(asked.settings, self._tenant(request)))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, await self._body(request, BodyKind.COMPLETION), CompletionReply).serve(
            request
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, await self._body(request, BodyKind.CHAT), ChatReply).serve(request)

    def _answer(
        self, request: web.Request, read: Preprocessed, kind: type[CompletionReply] | type[ChatReply]
    ) -> Answer:
        again = again_of(request.headers.get("Idempotency-Key", ""))
        asked = self._of_caller(request, read.asked)
        call_of(request).asks(asked.model or self._door.model.name, asked.settings)
        read.check()
        return Answer(self._door, asked, read.prompts, kind, int(self._clock()), again)

    async def _body(self, request: web.Request, kind: BodyKind) -> Preprocessed:
        return await read_body(request, kind, self._door, self._config.max_body_bytes, self._config.body_timeout_s)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._described()]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self._door.model.name:
            raise not_found(f"the model {name!r} does not exist here", "model", "model_not_found")
        return web.json_response(self._described())

    def _described(self) -> dict[str, Any]:
        model = self._door.model
        return {
            "id": model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "dunlin",
            "max_model_len": model.max_positions,
        }

    async def _health(self, request: web.Request) -> web.Response:
        if self._can_serve():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "no instance can serve"}, status=503, headers={"Retry-After": "1"})

    async def _metrics(self, request: web.Request) -> web.Response:
        # In a thread: a page of many tenants takes a while, and tokens are flowing here.
        page = await asyncio.to_thread(self._door.metrics.text)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(document())

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": dunlin.__version__})
