"""From any exception at the HTTP door to a response in OpenAI's shape; the errors are in `doors/openai/errors.py`."""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.http_exceptions import BadStatusLine, LineTooLong

from dunlin.limits import InvalidField
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.openai.errors import (
    INVALID_REQUEST,
    HttpError,
    invalid_field,
    refusal_error,
    unexpected_error,
)
from services.dispatcher.doors.openai.reply import error_body

_log = logging.getLogger(__name__)


def response_of(error: HttpError) -> web.Response:
    """The aiohttp response."""
    return web.json_response(error.body, status=error.status, headers=error.headers)


def to_http_error(error: Exception) -> HttpError:
    """The response for any exception. An unexpected one is logged, and its response shows nothing of it."""
    match error:
        case HttpError():
            return error
        case InvalidField():
            return invalid_field(error)
        case DoorError():
            return refusal_error(error)
        case web.RequestPayloadError():
            return HttpError(400, error_body(f"the body cannot be read: {error}", INVALID_REQUEST))
        case HttpProcessingError():
            return _unreadable(error)
        case web.HTTPException():
            text = error.text if error.status in (400, 417) else error.reason
            return HttpError(error.status, error_body(str(text), INVALID_REQUEST), _allow_header(error))
    _log.error("unexpected error at the HTTP door", exc_info=error)
    return unexpected_error()


@web.middleware
async def error_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every exception of a handler into an error response; in the midst of a response, reset the connection."""
    try:
        return await handler(request)
    except Exception as error:
        response = response_of(to_http_error(error))
        if request.writer.output_size > 0:
            _reset(request.transport)
        return response


def _reset(transport: asyncio.Transport | None) -> None:
    """End the connection so that what was sent does not pass for all of the response, nor an error for its rest.

    In HTTP/1.0, which proxies speak, a response may have neither a length nor chunks: it ends with the connection.
    """
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


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
