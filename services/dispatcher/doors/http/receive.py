"""An HTTP request's body, bounded in bytes, in time, and together with all others in memory."""

import asyncio

from aiohttp import web

from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.http.bodies import check_content_type, decompress
from services.dispatcher.doors.http.call_middleware import call_of
from services.dispatcher.doors.http.errors import INVALID_REQUEST, HttpError
from services.dispatcher.doors.openai.reply import error_body
from services.dispatcher.doors.preprocess.pool import ReservedMemory
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed


async def read_body(
    request: web.Request, kind: BodyKind, door: RequestGateway, most_bytes: int, within_s: float
) -> Preprocessed:
    """What the request asks.

    Raises:
        HttpError: a body of another type (415), too long (413), too slow (408), or wrongly compressed (400, 415).
        BadField, DoorError: see `PreprocessPool.read`; also no room for so large a body (429).
    """
    check_content_type(request)
    # A compressed body says nothing of how long it will be.
    is_plain = "Content-Encoding" not in request.headers
    declared = request.content_length if is_plain else None
    if declared is not None and declared > most_bytes:
        raise _too_long(most_bytes)
    with door.preprocess_pool.reserve_memory(declared) as held:
        try:
            async with asyncio.timeout(within_s):
                parts = await _received(request, held, most_bytes)
        except TimeoutError:
            text = f"the body did not come within {within_s:g} s"
            raise HttpError(408, error_body(text, INVALID_REQUEST)) from None
        if not is_plain:
            parts = [await decompress(request, b"".join(parts), most_bytes, door.preprocess_pool.decompressing)]
            held.grow(len(parts[0]))
        call_of(request).arrived_s = door.clock()
        return await door.preprocess_pool.read(kind, *parts)


async def _received(request: web.Request, held: ReservedMemory, most_bytes: int) -> list[bytes]:
    """In the parts in which it came: joining megabytes takes the event loop longer than handing them on."""
    parts, size = [], 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise _too_long(most_bytes)
        held.grow(size)
    return parts


def _too_long(most_bytes: int) -> HttpError:
    return HttpError(
        413, error_body(f"the body is longer than {most_bytes} bytes, the most that is taken", INVALID_REQUEST)
    )
