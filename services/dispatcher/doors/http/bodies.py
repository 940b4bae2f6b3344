"""Content types and encodings of request bodies at the HTTP door. Knows no field of a body."""

import asyncio
import zlib

from aiohttp import web

from services.dispatcher.doors.openai.errors import INVALID_REQUEST, HttpError
from services.dispatcher.doors.openai.reply import error_body

JSON_TYPE = "application/json"
ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ACCEPTED_ENCODINGS = "gzip, deflate, identity"


def check_content_type(request: web.Request) -> None:
    """Accept only a body that is declared as JSON.

    A browser lets pages of other origins send some other types, or none, without a preflight request: such a page could
    otherwise send requests from inside a private network.

    Raises:
        HttpError: another Content-Type, or none (415).
    """
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given != JSON_TYPE:
        text = f"the body's Content-Type is {given!r}" if given else "the body has no Content-Type"
        text += f": send Content-Type: {JSON_TYPE} (curl: -H 'Content-Type: {JSON_TYPE}')"
        raise HttpError(415, error_body(text, INVALID_REQUEST, None, "unsupported_media_type"), {"Accept": JSON_TYPE})


async def decompress(request: web.Request, data: bytes, most_bytes: int, one_at_a_time: asyncio.Lock) -> bytes:
    """The body without its Content-Encoding, inflated in a thread.

    `one_at_a_time` is held meanwhile: many threads at once would keep the event loop off its processor core, and the
    inflated bodies, which are not in the memory budget yet, would add up.

    Raises:
        HttpError: the encoding is not supported (415), the body is broken (400), or its content is longer than
            `most_bytes` (413).
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return data
    if encoding not in ENCODINGS:
        text = f"the Content-Encoding {encoding!r} is not taken here: send one of {ACCEPTED_ENCODINGS}"
        raise HttpError(
            415,
            error_body(text, INVALID_REQUEST, None, "unsupported_encoding"),
            {"Accept-Encoding": ACCEPTED_ENCODINGS},
        )
    async with one_at_a_time:
        return await asyncio.to_thread(inflate, data, encoding, most_bytes)


def inflate(data: bytes, encoding: str, most_bytes: int) -> bytes:
    """The content of one compressed member.

    Raises:
        HttpError: it is broken, incomplete or followed by other bytes (400), or its content is longer than `most_bytes`
            (413).
    """
    work = zlib.decompressobj(wbits=_wbits(data, encoding))
    try:
        plain = work.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise _broken(encoding, str(error)) from None
    if len(plain) > most_bytes:
        text = f"the body is longer than {most_bytes} bytes when it is decompressed"
        raise HttpError(413, error_body(text, INVALID_REQUEST, None, "body_too_long"))
    if not work.eof:
        raise _broken(encoding, "it ends too early")
    if work.unused_data:
        raise _broken(encoding, "something follows it")
    return plain


def _wbits(data: bytes, encoding: str) -> int:
    # Some clients send deflate without the zlib header that RFC 9110 requires; the first half byte tells.
    is_bare = encoding == "deflate" and data[:1] and data[0] & 0xF != zlib.DEFLATED
    return -zlib.MAX_WBITS if is_bare else ENCODINGS[encoding]


def _broken(encoding: str, why: str) -> HttpError:
    text = f"the body is not valid {encoding}, which its Content-Encoding names: {why}"
    return HttpError(400, error_body(text, INVALID_REQUEST, None, "invalid_encoding"))
