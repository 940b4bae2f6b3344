"""The page of metrics as a scraper sees it: over a socket, with the mistakes that clients make."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from dunlin.messages.fleet import FleetStatus
from dunlin.telemetry.metrics import MetricFamily, MetricSample
from dunlin.wire.errors import StartError
from services.monitor import server_metrics
from services.monitor.server_metrics import MetricsServer
from tests.ipv6 import needs_ipv6


async def status() -> FleetStatus:
    return FleetStatus(7, ())


def talk(request: bytes, *, ready: bool = True) -> bytes:
    """What the door answers to these bytes."""

    async def scenario(door: MetricsServer) -> bytes:
        if ready:
            door.set_source(status)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 300)
        finally:
            writer.close()

    return asyncio.run(with_door(scenario))


async def with_door(scenario: Callable[[MetricsServer], Awaitable[bytes]]) -> bytes:
    door = await MetricsServer.open("127.0.0.1:0")
    try:
        return await scenario(door)
    finally:
        await door.close()


def test_a_scrape_gets_the_page() -> None:
    answer = talk(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"\ndunlin_fleet_view_version 7.0\n" in body


@pytest.mark.parametrize(
    ("request_bytes", "status_line"),
    [
        (b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404"),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 405"),
        (b"nonsense\r\n\r\n", b"HTTP/1.0 400"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.0 400"),
    ],
)
def test_other_requests(request_bytes: bytes, status_line: bytes) -> None:
    assert talk(request_bytes).startswith(status_line)


def test_a_head_request_gets_no_body() -> None:
    assert talk(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"\r\n\r\n")


def test_before_the_service_runs_the_answer_is_503() -> None:
    assert talk(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ready=False).startswith(b"HTTP/1.1 503")


PAGE_BYTES = 20_000_000


def whole(sock: socket.socket) -> bytes:
    """What still comes from the other end, until it closes."""
    found = b""
    with sock, suppress(ConnectionError):
        while piece := sock.recv(1 << 20):
            found += piece
    return found


def test_above_the_limit_a_connection_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_metrics, "MAX_CONNECTIONS", 1)

    async def scenario(door: MetricsServer) -> bytes:
        _, silent = await asyncio.open_connection("127.0.0.1", door.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        refused = await reader.read()
        silent.close()
        writer.close()
        return refused

    answer = asyncio.run(with_door(scenario))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in answer


def test_peers_that_fall_silent_and_peers_that_never_read_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_metrics, "CONNECTION_S", 1.0)

    async def scenario(door: MetricsServer) -> bytes:
        door.set_source(status, lambda: [MetricFamily("dunlin_x", "x" * PAGE_BYTES, "gauge", (MetricSample((), 1.0),))])
        _, silent = await asyncio.open_connection("127.0.0.1", door.port)
        silent.write(b"GET /met")
        never_reads = socket.create_connection(("127.0.0.1", door.port))
        never_reads.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        while door.connections < 2:
            await asyncio.sleep(0.001)
        while door.connections:
            await asyncio.sleep(0.001)
        silent.close()
        return await asyncio.to_thread(whole, never_reads)

    # What the kernels had buffered still comes; the rest of the page was thrown away.
    assert 0 < len(asyncio.run(asyncio.wait_for(with_door(scenario), 60))) < PAGE_BYTES


@needs_ipv6
def test_the_address_may_be_ipv6() -> None:
    async def scenario() -> None:
        door = await MetricsServer.open("[::1]:0")
        _, writer = await asyncio.open_connection("::1", door.port)
        writer.close()
        await door.close()

    asyncio.run(scenario())


def test_a_taken_port_is_named() -> None:
    async def scenario(door: MetricsServer) -> bytes:
        with pytest.raises(StartError, match=rf"127\.0\.0\.1:{door.port}.*choose another --metrics-port"):
            await MetricsServer.open(f"127.0.0.1:{door.port}")
        return b""

    asyncio.run(with_door(scenario))
