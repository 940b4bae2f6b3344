"""The errors for paths and methods that are not served: they name what is, and which of OpenAI's endpoints are not."""

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import hdrs, web

from services.dispatcher.doors.openai.errors import INVALID_REQUEST, HttpError, not_found
from services.dispatcher.doors.openai.reply import error_body

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UNKNOWN_URL = "unknown_url"
MAX_SHOWN_CHARACTERS = 100
OPENAI_NOT_SERVED = (
    "assistants", "audio", "chatkit", "containers", "conversations", "edits", "embeddings", "engines",
    "evals", "fine_tuning", "fine-tunes", "images", "moderations", "organization", "realtime", "responses",
    "threads", "uploads", "vector_stores", "videos",
)  # fmt: skip
"""OpenAI's endpoints below /v1 that dunlin does not serve."""


class PathGuard:
    """Answers requests that match no route. Owns the list of served paths for its texts."""

    def __init__(self, served: Iterable[tuple[str, str]]) -> None:
        """`served`: method and path of each route."""
        methods: dict[str, list[str]] = {}
        for method, path in served:
            methods.setdefault(path, []).append(method)
        self._served = tuple(methods)
        self._here = ", ".join(f"{'|'.join(found)} {path}" for path, found in methods.items())
        self._methods = sorted({method for found in methods.values() for method in found} | {"HEAD", "OPTIONS"})

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Pass on requests with a route; answer OPTIONS; raise HttpError (404, 405) for the others."""
        missing = request.match_info.http_exception
        if request.method == hdrs.METH_OPTIONS and request.rel_url.raw_path == "*":
            return _allow(self._methods)
        if isinstance(missing, web.HTTPMethodNotAllowed):
            allowed = sorted({*missing.allowed_methods, hdrs.METH_OPTIONS})
            if request.method == hdrs.METH_OPTIONS:
                return _allow(allowed)
            text = f"{request.method} is not taken at {_shown(request.path)}: send {' or '.join(allowed)}"
            raise HttpError(
                405, error_body(text, INVALID_REQUEST, None, "method_not_allowed"), {"Allow": ", ".join(allowed)}
            )
        if missing is not None and missing.status == 404:
            raise not_found(f"{self._why(request.path)}; here is: {self._here}", None, UNKNOWN_URL)
        return await handler(request)

    def _why(self, path: str) -> str:
        shown, bare = _shown(path), path.rstrip("/")
        if path.startswith("/v1/v1/"):
            return f"{shown} has /v1 twice: the base URL ends in /v1, what follows must not begin with it"
        if bare != path and bare in self._served:
            return f"there is no {shown}: leave the slash at the end away"
        if f"/v1{bare}" in self._served:
            return f"there is no {shown}: did you mean /v1{bare}? The base URL of an OpenAI client ends in /v1"
        name = bare.removeprefix("/v1").lstrip("/").partition("/")[0]
        if name in OPENAI_NOT_SERVED:
            return f"OpenAI's {name} ({shown}) are not served by dunlin"
        return f"there is no {shown}"


def _allow(methods: Iterable[str]) -> web.Response:
    return web.Response(status=204, headers={"Allow": ", ".join(methods)})


def _shown(path: str) -> str:
    return path if len(path) <= MAX_SHOWN_CHARACTERS else f"{path[:MAX_SHOWN_CHARACTERS]}…"
