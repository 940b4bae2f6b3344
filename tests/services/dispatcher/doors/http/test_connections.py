"""Peers that are slow, silent or make no sense at the HTTP door: each is ended, told why, and counted."""

import asyncio
import json
import logging
import socket

import pytest

from tests.services.dispatcher.door_requests import MODEL, sent, with_doors
from tests.services.dispatcher.raw_http import HEAD, HEALTH, LOOPS, Loop, error_of, limits, lines
from tests.services.dispatcher.running_doors import Doors


async def emptied(cluster: Doors) -> None:
    while cluster.web.connections.open:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("loop", LOOPS)
def test_heads_that_never_end_are_answered_and_silent_connections_closed(loop: Loop) -> None:
    async def test(cluster: Doors) -> None:
        halves = [sent(cluster, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ") for _ in range(20)]
        for answer in await asyncio.gather(*halves):
            status, error = error_of(answer)
            assert (status, error["code"]) == (408, "request_timeout")
        assert await sent(cluster, b"") == b""
        assert cluster.refused == ["header_timeout"] * 21
        await emptied(cluster)

    with_doors(test, loop, http=limits(header_timeout_s=0.5))


def test_a_head_in_drips_has_no_more_time_than_one_that_stops() -> None:
    async def test(cluster: Doors) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.http_port)
        answer = asyncio.create_task(reader.read())
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
        while not answer.done():
            writer.write(b"a")
            await asyncio.sleep(0.01)
        assert error_of(answer.result())[0] == 408
        writer.close()

    with_doors(test, http=limits(header_timeout_s=0.1))


def test_between_two_requests_there_is_more_time_than_within_a_head() -> None:
    async def test(cluster: Doors) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.http_port)
        for _ in range(2):
            writer.write(HEALTH)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readuntil(b"}") == b'{"status": "ok"}'
        writer.write(b"GET /hea")
        assert error_of(await reader.read())[0] == 408
        writer.close()
        assert cluster.refused == ["header_timeout"]

    with_doors(test, http=limits(header_timeout_s=0.2))


def test_an_idle_connection_is_closed_without_a_response() -> None:
    async def test(cluster: Doors) -> None:
        assert (await sent(cluster, HEALTH)).endswith(b'{"status": "ok"}')
        assert cluster.refused == []
        await emptied(cluster)

    with_doors(test, http=limits(idle_timeout_s=0.05))


def test_a_request_that_takes_long_is_no_idle_connection() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with cluster.client() as ours:
            call = asyncio.create_task(ours.completions.create(model=MODEL, prompt="x", max_tokens=3))
            await cluster.instance.until(lambda: cluster.instance.placed)
            await asyncio.sleep(0.7)
            cluster.instance.release()
            assert (await call).choices[0].text == cluster.text(3)

    with_doors(test, http=limits(header_timeout_s=0.5, idle_timeout_s=0.5))


def test_a_body_that_never_ends_is_408_and_its_connection_is_closed() -> None:
    async def test(cluster: Doors) -> None:
        for length in (b"Content-Length: 9\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
            status, error = error_of(await sent(cluster, HEAD + length))
            assert (status, error["message"]) == (408, "the body did not come within 0.05 s")
        await emptied(cluster)

    with_doors(test, http=limits(body_timeout_s=0.05, header_timeout_s=0.1))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_never_reads_loses_its_stream_and_its_slots(loop: Loop) -> None:
    async def test(cluster: Doors) -> None:
        cluster.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # inherited by what it accepts
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", cluster.http_port))
        fields = {"prompt": "x", "max_tokens": 900, "n": 4, "stream": True, "logprobs": 20}
        body = json.dumps(fields).encode()
        await asyncio.get_running_loop().sock_sendall(sock, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while "write_timeout" not in cluster.refused:
            await asyncio.sleep(0.001)
        while len(cluster.core.journal):
            await asyncio.sleep(0)
        await emptied(cluster)
        sock.close()

    with_doors(test, loop, http=limits(write_timeout_s=0.05))


def test_a_body_whose_chunks_break_later_is_400_at_once() -> None:
    async def test(cluster: Doors) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.http_port)
        writer.write(HEAD + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"pr\r\n')
        while not cluster.web.connections.serving:
            await asyncio.sleep(0)
        writer.write(b"zz\r\nabc\r\n")
        status, error = error_of(await reader.read())
        assert (status, error["message"]) == (400, "the body cannot be read: the body's transfer coding is broken")
        writer.close()
        await emptied(cluster)

    with_doors(test, http=limits())


@pytest.mark.parametrize(
    ("data", "status", "named"),
    [
        (bytes.fromhex("16030100c8010000c40303") + b"\x00" * 180, 400, "TLS came in at a port without TLS"),
        (b"\x9f\x03\xffabc\r\n\r\n", 400, "Invalid method"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2 is not spoken here"),
        (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505, "HTTP/1.1"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Missing 'Host'"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "longer than 8190 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431, "longer than 8190 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431, "too many headers"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", 400, "Invalid character in chunk size"),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400, "Content-Length"),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400, "Invalid character in Content-Length"),
    ],
)
def test_what_is_no_http_is_answered_in_json(
    data: bytes, status: int, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: Doors) -> None:
        got, error = error_of(await sent(cluster, data))
        assert (got, error["code"]) == (status, "malformed_http")
        assert named in str(error["message"])
        assert cluster.refused == ["malformed"]
        [line] = lines(caplog)
        assert line.exc_info is None

    with caplog.at_level(logging.INFO):
        with_doors(test, http=limits())


def test_an_unknown_expectation_is_refused_in_json() -> None:
    async def test(cluster: Doors) -> None:
        answer = await sent(cluster, HEAD + b"Connection: close\r\nExpect: tea\r\nContent-Length: 0\r\n\r\n")
        assert error_of(answer) == (
            417,
            {"message": "Unknown Expect: tea", "type": "invalid_request_error", "param": None, "code": None},
        )

    with_doors(test)
