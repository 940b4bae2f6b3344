"""Bodies of the HTTP door: which types and encodings are taken. Knows no field of what is in them."""

import asyncio
import zlib

from aiohttp import web

from services.dispatcher.doors.http.errors import INVALID_REQUEST, HttpError
from services.dispatcher.doors.openai.reply import error_body

JSON_TYPE = "application/json"
ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ACCEPTED_ENCODINGS = "gzip, deflate, identity"


def check_content_type(request: web.Request) -> None:
    """Only JSON that says so: pages of other origins may send the other types, and none, without asking before.

    Raises:
        HttpError: it is something else.
    """
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given != JSON_TYPE:
        text = f"the body's Content-Type is {given!r}" if given else "the body has no Content-Type"
        text += f": send Content-Type: {JSON_TYPE} (curl: -H 'Content-Type: {JSON_TYPE}')"
        raise HttpError(415, error_body(text, INVALID_REQUEST, None, "unsupported_media_type"), {"Accept": JSON_TYPE})


async def decompress(request: web.Request, data: bytes, most_bytes: int, one_at_a_time: asyncio.Lock) -> bytes:
    """The body as it was before its Content-Encoding. A crowd of threads that decompress would keep the event loop from
    its core, and megabytes that have no room yet would add up.

    Raises:
        HttpError: an encoding that is not taken, a broken body, or one that is too long without it.
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
    """Decompressed, one member.

    Raises:
        HttpError: it is broken, incomplete, followed by something else, or longer than `most_bytes`.
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
    # Some clients send deflate without the header that RFC 9110 asks for; its first half byte tells.
    is_bare = encoding == "deflate" and data[:1] and data[0] & 0xF != zlib.DEFLATED
    return -zlib.MAX_WBITS if is_bare else ENCODINGS[encoding]


def _broken(encoding: str, why: str) -> HttpError:
    text = f"the body is not valid {encoding}, which its Content-Encoding names: {why}"
    return HttpError(400, error_body(text, INVALID_REQUEST, None, "invalid_encoding"))
