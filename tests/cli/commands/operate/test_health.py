"""`dunlin health` says by its exit code whether a real server serves, with and without TLS."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cli.main import main
from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.wire.rpc.server import GrpcServer
from dunlin.wire.security import TlsIdentity


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and the certificates of a kvstore."""
    root = tmp_path_factory.mktemp("tls")
    make_ca(root / "ca")
    issue_certificate(root / "ca", root / "kvstore", CertificateRequest("kvstore", "kvstore-0"))
    return root / "kvstore"


def code(server: GrpcServer, *words: str) -> Awaitable[int]:
    return asyncio.to_thread(main, ["health", f"127.0.0.1:{server.port}", *words])


def serving(scenario: Callable[[GrpcServer], Awaitable[None]], security: TlsIdentity | None = None) -> None:
    """Run `scenario` beside a server that serves."""

    async def whole() -> None:
        server = GrpcServer("127.0.0.1:0", security.server_credentials() if security else None)
        await server.start([], [])
        try:
            await scenario(server)
        finally:
            await server.stop(0.0)

    asyncio.run(whole())


def test_it_follows_the_server_from_serving_to_gone(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(server: GrpcServer) -> None:
        assert await code(server) == 0
        assert capsys.readouterr() == ("", "")
        await server.set_not_serving()
        assert await code(server) == 1
        assert "does not serve: it says NOT_SERVING" in capsys.readouterr().err
        await server.stop(0.0)
        assert await code(server) == 1
        assert "UNAVAILABLE" in capsys.readouterr().err

    serving(scenario)


def test_with_tls_it_wants_the_certificate_of_the_role(
    tls: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: GrpcServer) -> None:
        assert await code(server, "--role", "kvstore", "--tls-dir", str(tls)) == 0
        assert await code(server, "--role", "monitor", "--tls-dir", str(tls)) == 1
        assert await code(server, "--role", "kvstore") == 1
        monkeypatch.setenv("DUNLIN_TLS_DIR", str(tls))
        assert await code(server, "--role", "kvstore") == 0

    serving(scenario, TlsIdentity.load_for(tls, "kvstore", "kvstore-0"))


def test_certificates_that_cannot_be_read_are_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "127.0.0.1:1", "--tls-dir", str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_server_that_hangs_costs_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        silent = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        assert await asyncio.to_thread(main, ["health", address, "--timeout", "0.1"]) == 1
        silent.close()

    asyncio.run(scenario())
    assert "DEADLINE_EXCEEDED" in capsys.readouterr().err
