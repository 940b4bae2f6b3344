"""From any exception at the HTTP door to an error response in OpenAI's shape: status, body and headers."""

import logging
import math
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.http_exceptions import BadStatusLine, LineTooLong

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import FinishReason
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.openai.reply import Json, error_body

_log = logging.getLogger(__name__)

INVALID_REQUEST, SERVER_ERROR = "invalid_request_error", "server_error"
REJECTIONS = {
    RejectionCode.INVALID: (400, INVALID_REQUEST, None),
    RejectionCode.TOO_LONG: (400, INVALID_REQUEST, "context_length_exceeded"),
    RejectionCode.FULL: (429, "rate_limit_error", "queue_full"),
    RejectionCode.UNAVAILABLE: (503, SERVER_ERROR, "unavailable"),
    RejectionCode.QUOTA: (429, "rate_limit_error", "rate_limit_exceeded"),
    RejectionCode.UNAUTHENTICATED: (401, INVALID_REQUEST, "invalid_api_key"),
    RejectionCode.FORBIDDEN: (403, "permission_error", "forbidden"),
    RejectionCode.CONFLICT: (422, INVALID_REQUEST, "idempotency_key_reused"),
}
FINISH_ERRORS = {
    FinishReason.ERROR: (500, SERVER_ERROR, "generation_failed"),
    FinishReason.DEADLINE: (504, SERVER_ERROR, "deadline_exceeded"),
    FinishReason.CANCELLED: (499, INVALID_REQUEST, "cancelled"),
}


class HttpError(Exception):
    """An error response; `body` is OpenAI's error object."""

    def __init__(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        super().__init__(body["error"]["message"])
        self.status = status
        self.body = body
        self.headers = headers or {}

    def response(self) -> web.Response:
        """The aiohttp response."""
        return web.json_response(self.body, status=self.status, headers=self.headers)


def finish_error(finish: FinishReason, detail: str) -> HttpError:
    """The error of a request that was admitted and then failed, by how it ended."""
    status, kind, code = FINISH_ERRORS[finish]
    body = error_body(detail or f"the request ended: {finish.name.lower()}", kind, None, code)
    # OpenAI's clients retry every 5xx by themselves. This request has been tried for as long as it is worth.
    return HttpError(status, body, {"x-should-retry": "false"})


def not_found(text: str, param: str | None = None, code: str | None = None) -> HttpError:
    """The error for an unknown model or path (404)."""
    return HttpError(404, error_body(text, INVALID_REQUEST, param, code))


def to_http_error(error: Exception) -> HttpError:
    """The response for any exception. An unexpected one is logged, and its response shows nothing of it."""
    match error:
        case HttpError():
            return error
        case InvalidField():
            return HttpError(400, error_body(str(error), INVALID_REQUEST, error.name))
        case DoorError():
            return _refused(error)
        case web.RequestPayloadError():
            return HttpError(400, error_body(f"the body cannot be read: {error}", INVALID_REQUEST))
        case HttpProcessingError():
            return _unreadable(error)
        case web.HTTPException():
            text = error.text if error.status in (400, 417) else error.reason
            return HttpError(error.status, error_body(str(text), INVALID_REQUEST), _allow_header(error))
    _log.error("unexpected error at the HTTP door", exc_info=error)
    return HttpError(500, error_body("an unexpected error in the server; its log says more", SERVER_ERROR))


@web.middleware
async def error_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every exception of a handler into an error response."""
    try:
        return await handler(request)
    except Exception as error:
        return to_http_error(error).response()


def _refused(error: DoorError) -> HttpError:
    status, kind, code = REJECTIONS[error.code]
    headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpError(status, error_body(error.detail, kind, error.field or None, code), headers)


def _unreadable(error: HttpProcessingError) -> HttpError:
    """The error for bytes that aiohttp's parser refused, chosen by the parser's message."""
    text = error.message.partition("\n\n")[0].rstrip(":")
    if isinstance(error, LineTooLong):
        status, text = 431, f"the URL, or a header with its name, is longer than {error.args[1]} bytes"
    elif "Too many headers" in text:
        status, text = 431, "there are too many headers"
    elif "HTTPS traffic" in text:
        status, text = 400, "TLS came in at a port without TLS: use http:// here, or start dunlin with certificates"
    elif "PRI/Upgrade" in text:
        status, text = 505, "HTTP/2 is not spoken here: use HTTP/1.1"
    elif isinstance(error, BadStatusLine) and "HTTP version" in text:
        status, text = 505, "only HTTP/1.0 and HTTP/1.1 are spoken here"
    else:
        status, text = 400, f"this is not valid HTTP/1.1: {text}"
    return HttpError(status, error_body(text, INVALID_REQUEST, None, "malformed_http"))


def _allow_header(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
