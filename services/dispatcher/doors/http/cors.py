"""CORS at the HTTP door: the origins whose web pages may send requests, and the headers that browsers require for it.

A browser sends the page's origin with every request that crosses origins; other clients send none and are not affected.
"""

from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from dunlin.auth.web_origins import ANY_ORIGIN
from services.dispatcher.doors.openai.errors import HttpError
from services.dispatcher.doors.openai.reply import error_body

ALLOWED_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
ALLOWED_HEADERS = frozenset(
    {
        "accept", "authorization", "content-type", "idempotency-key", "openai-beta", "openai-organization",
        "openai-project", "traceparent", "tracestate", "user-agent", "x-request-class",
    }
)  # fmt: skip
ALLOWED_PREFIX = "x-stainless-"
"""The prefix of a dozen headers that OpenAI's clients send, more with each version."""
EXPOSED_HEADERS = (
    "X-Request-Id, Retry-After, x-should-retry, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, "
    "x-ratelimit-reset-tokens"
)
PREFLIGHT_MAX_AGE_S = 600
MAX_SHOWN_CHARACTERS = 100


class CorsOrigins:
    """Owns the origins that are allowed beside the door's own."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = frozenset(allowed)

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse requests of pages of other origins, before any work on them; answer preflight requests."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and not self._is_allowed(origin, request):
            raise _refused(origin)
        if origin is not None and request.method == hdrs.METH_OPTIONS and _is_preflight(request):
            return _preflight(request)
        return await handler(request)

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let the page read this response (a signal `on_response_prepare`: streams and errors have it too)."""
        if not self._allowed:
            return
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and (origin in self._allowed or ANY_ORIGIN in self._allowed):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED_HEADERS

    def _is_allowed(self, origin: str, request: web.Request) -> bool:
        if origin in self._allowed or ANY_ORIGIN in self._allowed:
            return True
        # The scheme is not compared: a proxy may terminate TLS in front of this server.
        return origin.partition("://")[2] == request.headers.get(hdrs.HOST, "").lower() != ""


def _is_preflight(request: web.Request) -> bool:
    return hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers


def _preflight(request: web.Request) -> web.Response:
    wanted = [name.strip().lower() for name in request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").split(",")]
    allowed = [name for name in wanted if name in ALLOWED_HEADERS or name.startswith(ALLOWED_PREFIX)]
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: ALLOWED_METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ", ".join(allowed) or "Content-Type",
        hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_MAX_AGE_S),
    }
    return web.Response(status=204, headers=headers)


def _refused(origin: str) -> HttpError:
    shown = origin if len(origin) <= MAX_SHOWN_CHARACTERS else f"{origin[:MAX_SHOWN_CHARACTERS]}…"
    text = f"web pages of {shown!r} may not ask here: allow them with --cors ORIGIN"
    return HttpError(403, error_body(text, "permission_error", None, "origin_not_allowed"))
