"""Just enough of HTTP/1.1 to post JSON and read a stream of server-sent events, with nothing but the standard library.

One connection per request: a load generator wants every arrival to be a client of its own. Knows nothing of OpenAI.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_LINE_LIMIT_BYTES = 1 << 20


class HttpError(Exception):
    """No answer, or one that is no HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The start of an answer; header names in lower case. `body` yields what follows, piece by piece."""

    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]


class Post:
    """One POST and its connection: `async with Post(url, value) as answer`. Leaving early hangs up.

    `context` is for https; `headers` go beside the usual ones.
    """

    def __init__(
        self, url: str, value: Any, headers: Sequence[tuple[str, str]] = (), context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 80, parts.path or "/"
        self._headers = "".join(f"{name}: {said}\r\n" for name, said in headers)
        self._context = context
        self._payload = json.dumps(value).encode()
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Answer:
        try:
            reader, self._writer = await asyncio.open_connection(
                self._host, self._port, limit=_LINE_LIMIT_BYTES, ssl=self._context
            )
            self._writer.write(self._head() + self._payload)
            await self._writer.drain()
            status, headers = await _read_head(reader)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            await self.__aexit__()
            raise HttpError(f"{self._host}:{self._port}: {error}") from None
        except BaseException:
            await self.__aexit__()
            raise
        return Answer(status, headers, _body(reader, headers))

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def _head(self) -> bytes:
        return (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self._payload)}\r\nConnection: close\r\n{self._headers}\r\n"
        ).encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status, *_ = lines[0].split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"no HTTP answer: {lines[0][:80]!r}")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).split(b";")[0], 16):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            while piece := await reader.read(_LINE_LIMIT_BYTES):
                yield piece
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise HttpError(f"the answer broke off: {error or type(error).__name__}") from None


async def read_all(body: AsyncIterator[bytes]) -> bytes:
    """The whole body."""
    return b"".join([piece async for piece in body])


async def events(body: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The `data:` of every server-sent event."""
    kept = b""
    async for piece in body:
        *lines, kept = (kept + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()
