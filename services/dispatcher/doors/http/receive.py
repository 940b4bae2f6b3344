"""Receives an HTTP request's body, with limits on its bytes, its time, and the memory of all bodies together."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dunlin.limits import InvalidField
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.http.bodies import check_content_type, decompress
from services.dispatcher.doors.http.call_middleware import call_of
from services.dispatcher.doors.openai.errors import INVALID_REQUEST, HttpError
from services.dispatcher.doors.openai.reply import error_body
from services.dispatcher.doors.preprocess.pool import ReservedMemory
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed, read_json


async def read_body(
    request: web.Request, kind: BodyKind, gateway: RequestGateway, most_bytes: int, within_s: float
) -> Preprocessed:
    """Receive the body, of at most `most_bytes` within `within_s` seconds, and preprocess it.

    Raises:
        HttpError: a body of another type (415), too long (413), too slow (408), or wrongly compressed (400, 415).
        InvalidField, DoorError: see `PreprocessPool.read`; a DoorError too if the memory budget is used up (429).
    """
    check_content_type(request)
    # The length of a compressed body says nothing about the length of its content.
    is_plain = "Content-Encoding" not in request.headers
    declared = request.content_length if is_plain else None
    if declared is not None and declared > most_bytes:
        raise _too_long(most_bytes)
    with gateway.preprocess_pool.reserve_memory(declared) as memory:
        try:
            async with asyncio.timeout(within_s):
                parts = await _receive_parts(request, memory, most_bytes)
        except TimeoutError:
            raise _too_slow(within_s) from None
        if not is_plain:
            parts = [await decompress(request, b"".join(parts), most_bytes, gateway.preprocess_pool.decompressing)]
            memory.grow(len(parts[0]))
        call_of(request).arrived_s = gateway.clock()
        return await gateway.preprocess_pool.read(kind, *parts)


async def read_json_body(request: web.Request, most_bytes: int, within_s: float) -> Mapping[str, Any]:
    """A small body that is a JSON object, of at most `most_bytes` within `within_s` seconds.

    Raises:
        HttpError: as `read_body`.
        MalformedRequest, InvalidField: it is no JSON object.
    """
    check_content_type(request)
    data = b""
    try:
        async with asyncio.timeout(within_s):
            async for part in request.content.iter_any():
                data += part
                if len(data) > most_bytes:
                    raise _too_long(most_bytes)
    except TimeoutError:
        raise _too_slow(within_s) from None
    body = read_json(data)
    if not isinstance(body, Mapping):
        raise InvalidField("body", "must be a JSON object")
    return body


async def _receive_parts(request: web.Request, memory: ReservedMemory, most_bytes: int) -> list[bytes]:
    """The body in the parts in which it came: joining megabytes would hold up the event loop."""
    parts, size = [], 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise _too_long(most_bytes)
        memory.grow(size)
    return parts


def _too_slow(within_s: float) -> HttpError:
    return HttpError(408, error_body(f"the body did not come within {within_s:g} s", INVALID_REQUEST))


def _too_long(most_bytes: int) -> HttpError:
    return HttpError(
        413, error_body(f"the body is longer than {most_bytes} bytes, the most that is taken", INVALID_REQUEST)
    )
