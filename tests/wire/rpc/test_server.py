"""Peers of a gRPC port that say nothing, or nothing more: their connections end."""

import asyncio

import pytest

import dunlin.wire.rpc.server
from dunlin.wire.channels import SERVER_OPTIONS
from dunlin.wire.rpc.server import GrpcServer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS = bytes(3) + b"\x04" + bytes(5)


def test_silent_peers_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"grpc.server_handshake_timeout_ms": 100, "grpc.max_connection_idle_ms": 200}
    assert limits.keys() <= dict(SERVER_OPTIONS).keys()
    monkeypatch.setattr(dunlin.wire.rpc.server, "SERVER_OPTIONS", list((dict(SERVER_OPTIONS) | limits).items()))

    async def end_of(server: GrpcServer, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(data)
        while await reader.read(1 << 16):
            pass
        writer.close()

    async def test() -> None:
        server = GrpcServer("127.0.0.1:0")
        await server.start([], [])
        peers = (b"", PREFACE[:9], PREFACE, PREFACE + NO_SETTINGS)
        try:
            async with asyncio.timeout(300):
                await asyncio.gather(*(end_of(server, data) for data in peers))
        finally:
            await server.stop(0.0)

    asyncio.run(test())
