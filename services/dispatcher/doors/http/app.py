"""The HTTP door: OpenAI's paths, health and metrics. Routes requests and reads them; `responder.py` answers them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

import dunlin
from dunlin.auth.tls_context import MakeContext
from dunlin.telemetry.prometheus import CONTENT_TYPE
from dunlin.wire.errors import StartError
from services.dispatcher.admission.quotas import QuotaUsage
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.generation.idempotency import parse_retry_identity
from services.dispatcher.doors.generation.settings import SETTING_CHECKS
from services.dispatcher.doors.http.call_middleware import CALL_KEY, DOOR_NAME, CallMiddleware, call_of
from services.dispatcher.doors.http.config import HttpConfig
from services.dispatcher.doors.http.connections import Connections, OnConnectionRefused, with_request_hook
from services.dispatcher.doors.http.cors import CorsOrigins
from services.dispatcher.doors.http.errors import error_middleware
from services.dispatcher.doors.http.listener import Listener
from services.dispatcher.doors.http.paths import PathGuard
from services.dispatcher.doors.http.rate_limit_headers import rate_limit_headers
from services.dispatcher.doors.http.receive import read_body
from services.dispatcher.doors.http.responder import OpenAIResponder
from services.dispatcher.doors.openai.call import OpenAICall
from services.dispatcher.doors.openai.errors import not_found
from services.dispatcher.doors.openai.openapi import openapi_document
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed

__all__ = ["HttpConfig", "HttpDoor", "bind"]

SHUTDOWN_S = 0.5
"""Seconds that running handlers get to end at the stop."""
CLASS_HEADER = "X-Request-Class"
"""Sets the class of a request whatever its body says, for clients that cannot add fields to it."""
PUBLIC_PATHS = ("/health", "/metrics", "/openapi.json", "/version")
"""Paths that need no API key."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free one. Bound before the slow parts of the start, so that errors show early.

    Raises:
        StartError: the port is in use, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=1024)
    except OSError as error:
        text = f"cannot listen for HTTP on {host}:{port}: {error.strerror or error}; choose another"
        raise StartError(text) from error


class HttpDoor:
    """Owns the HTTP server on a socket that `bind` made. `tls` makes it HTTPS.

    `can_serve` tells whether an instance is serving (for /health), `usage` what a tenant has left of its quotas, by its
    name; `refused` is called as in `Connections`. `clock` returns Unix seconds. `more_routes` are served too (batches).
    """

    connections: Connections
    _listener: Listener

    def __init__(
        self,
        gateway: RequestGateway,
        authenticator: Authenticator,
        listening: socket.socket,
        can_serve: Callable[[], bool],
        clock: Callable[[], float],
        config: HttpConfig | None = None,
        tls: MakeContext | None = None,
        usage: Callable[[str], QuotaUsage] = lambda tenant: QuotaUsage(),
        refused: OnConnectionRefused = lambda kind: None,
        more_routes: Sequence[web.RouteDef] = (),
    ) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._tls = tls
        self._listening = listening
        self._config = config or HttpConfig()
        self._can_serve = can_serve
        self._clock = clock
        self._created = int(clock())
        self._usage = usage
        self._refused = refused
        self._more_routes = more_routes
        self._runner = web.AppRunner(self._application(), handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)

    async def start(self) -> None:
        """Begin to accept connections."""
        await self._runner.setup()
        assert self._runner.server is not None
        self.connections = Connections(with_request_hook(self._runner.server), self._config, self._refused)
        self._listener = Listener(self._listening, self.connections, self._tls)
        self._listener.start()

    async def stop(self) -> None:
        """Stop listening and end the running handlers."""
        await self._listener.stop()
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        calls = CallMiddleware(self._gateway)
        routes = [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            web.post("/v1/completions", self._completions),
            web.post("/v1/chat/completions", self._chat),
            web.get("/openapi.json", self._openapi),
            web.get("/health", self._health),
            web.get("/metrics", self._metrics),
            web.get("/version", self._version),
            *self._more_routes,
        ]
        origins = CorsOrigins(self._config.origins)
        paths = PathGuard((route.method, route.path.replace(":.+", "")) for route in routes)
        application = web.Application(
            middlewares=[
                calls.record_call,
                error_middleware,
                calls.record_error,
                origins.guard,
                self._authenticate,
                paths.guard,
            ],
            client_max_size=self._config.max_body_bytes,
        )
        application.on_response_prepare.append(origins.prepare)
        application.on_response_prepare.append(self._add_rate_limit_headers)
        application.add_routes(routes)
        return application

    @web.middleware
    async def _authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the API key before the body is read; `PUBLIC_PATHS` need none."""
        if request.path not in PUBLIC_PATHS:
            call_of(request).tenant = self._tenant(request) or ""
        return await handler(request)

    async def _add_rate_limit_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add `x-ratelimit-*` to responses of requests that count against quotas, as of the response's start."""
        call = request.get(CALL_KEY)
        if call is not None and call.tenant and request.method == "POST":
            response.headers.update(rate_limit_headers(self._usage(call.tenant)))

    def _tenant(self, request: web.Request) -> str | None:
        return self._authenticator.authenticate(request.headers.get("Authorization"))

    def _with_tenant(self, request: web.Request, parsed: ParsedRequest) -> ParsedRequest:
        settings, said = parsed.settings, request.headers.get(CLASS_HEADER)
        if said is not None:
            settings = replace(settings, request_class=SETTING_CHECKS["request_class"](CLASS_HEADER, said.lower()))
        return replace(parsed, settings=self._authenticator.settings_of(settings, self._tenant(request)))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._responder(request, await self._body(request, BodyKind.COMPLETION), CompletionReply).respond(
            request
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._responder(request, await self._body(request, BodyKind.CHAT), ChatReply).respond(request)

    def _responder(
        self, request: web.Request, preprocessed: Preprocessed, kind: type[CompletionReply] | type[ChatReply]
    ) -> OpenAIResponder:
        retry = parse_retry_identity(request.headers.get("Idempotency-Key", ""))
        parsed = self._with_tenant(request, preprocessed.request)
        call_of(request).set_request(parsed.model or self._gateway.model.name, parsed.settings)
        preprocessed.raise_if_refused()
        prompts, created = preprocessed.prompts, int(self._clock())
        return OpenAIResponder(OpenAICall(self._gateway, parsed, prompts, kind, created, DOOR_NAME, retry))

    async def _body(self, request: web.Request, kind: BodyKind) -> Preprocessed:
        return await read_body(request, kind, self._gateway, self._config.max_body_bytes, self._config.body_timeout_s)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": list(map(self._model_object, self._gateway.model.names))})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if why := self._gateway.model.why_unknown(name):
            raise not_found(why, "model", "model_not_found")
        return web.json_response(self._model_object(name))

    def _model_object(self, name: str) -> dict[str, Any]:
        """The model, or an adapter, whose `parent` is the model."""
        model = self._gateway.model
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "dunlin",
            "max_model_len": model.max_positions,
            **({} if name == model.name else {"parent": model.name}),
        }

    async def _health(self, request: web.Request) -> web.Response:
        if self._can_serve():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "no instance can serve"}, status=503, headers={"Retry-After": "1"})

    async def _metrics(self, request: web.Request) -> web.Response:
        # In a thread: making a page with many tenants would hold up the streams on the event loop.
        page = await asyncio.to_thread(self._gateway.metrics.page)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(openapi_document())

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": dunlin.__version__})
