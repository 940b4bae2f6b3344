"""The small HTTP client against a server that says exactly these bytes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dunlin.workload.http import Answer, HttpError, Post, events, read_all


def against(answer: bytes, use: Callable[[Answer], Awaitable[object]], heard: list[bytes] | None = None) -> object:
    """What `use` makes of `answer`, said byte by byte so that no piece is whole."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if heard is not None:
            heard.append(head + await reader.readexactly(length))
        for byte in answer:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        writer.close()

    async def run() -> object:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Post(f"http://127.0.0.1:{port}/v1/x", {"a": [1]}) as found:
            return await use(found)

    return asyncio.run(run())


async def status_and_body(answer: Answer) -> tuple[int, bytes]:
    return answer.status, await read_all(answer.body)


async def all_events(answer: Answer) -> list[str]:
    return [event async for event in events(answer.body)]


def test_the_request_is_json() -> None:
    heard: list[bytes] = []
    against(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status_and_body, heard)
    assert heard[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert heard[0].endswith(b'\r\n\r\n{"a": [1]}')


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 429 Too Many Requests\r\n\r\nhello",
        b"HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
    ],
)
def test_every_kind_of_body_is_read(answer: bytes) -> None:
    assert against(answer, status_and_body) == (429, b"hello")


def test_events_are_put_together_from_pieces() -> None:
    body = b'HTTP/1.1 200 OK\r\n\r\n: hello\ndata: {"a": 1}\n\ndata:[DONE]\n\n'
    assert against(body, all_events) == ['{"a": 1}', "[DONE]"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(HttpError):
        against(answer, status_and_body)


def test_nobody_there_is_an_error() -> None:
    async def run() -> None:
        async with Post("http://127.0.0.1:1/", {}):
            pass

    with pytest.raises(HttpError, match=r"127\.0\.0\.1:1"):
        asyncio.run(run())
