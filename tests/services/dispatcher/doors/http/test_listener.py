"""The listener of the HTTP door: connections above the limit, TLS handshakes with a deadline, the stop."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.wire.certificate_reloader import CertificateReloader
from dunlin.wire.security import TlsIdentity
from tests.services.dispatcher.door_requests import sent, with_doors
from tests.services.dispatcher.raw_http import HEAD, HEALTH, LOOPS, Loop, error_of, limits, lines
from tests.services.dispatcher.running_doors import Doors


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_above_the_limit_gets_503_with_retry_after(loop: Loop) -> None:
    async def test(cluster: Doors) -> None:
        held = [await asyncio.open_connection("127.0.0.1", cluster.http_port) for _ in range(3)]
        while cluster.web.connections.open < 3:
            await asyncio.sleep(0)
        answers = await asyncio.gather(*(sent(cluster, HEAD + b"Content-Length: 2\r\n\r\n{}") for _ in range(5)))
        for answer in answers:
            status, error = error_of(answer)
            assert (status, error["code"]) == (503, "too_many_connections")
            assert b"\r\nRetry-After: 1\r\n" in answer
        assert cluster.refused == ["connection_limit"] * 5
        held.pop()[1].close()
        while not cluster.web.connections.has_room:
            await asyncio.sleep(0.001)
        assert (await sent(cluster, HEALTH[:-2] + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
        for _, writer in held:
            writer.close()

    with_doors(test, loop, http=limits(max_connections=3))


def test_only_so_many_refusals_are_answered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.dispatcher.doors.http.listener.MAX_REFUSALS", 2)

    async def test(cluster: Doors) -> None:
        opened = [await asyncio.open_connection("127.0.0.1", cluster.http_port) for _ in range(4)]
        assert await opened[3][0].read() == b"", "neither of the two that are told has sent its request"
        opened[2][1].write(HEALTH)
        assert error_of(await opened[2][0].read())[0] == 503
        for _, writer in opened:
            writer.close()

    with_doors(test, http=limits(max_connections=1))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tls")
    make_ca(root / "ca")
    issue_certificate(root / "ca", root / "server", CertificateRequest("dispatcher", "d", ("127.0.0.1",)))
    return root


@pytest.mark.parametrize("loop", LOOPS)
def test_handshakes_that_never_end_count_and_end(tls: Path, loop: Loop) -> None:
    server = TlsIdentity.load(tls / "server").server_context(demands_certificate=False)
    trusting = ssl.create_default_context(cafile=str(tls / "ca" / "ca.pem"))

    async def test(cluster: Doors) -> None:
        hello = bytes.fromhex("16030100c801")
        halves = [asyncio.create_task(sent(cluster, data)) for data in (b"", hello, hello)]
        while cluster.web.connections.open < 3:
            await asyncio.sleep(0)
        status, error = error_of(await sent(cluster, HEALTH, trusting))
        assert (status, error["code"]) == (503, "too_many_connections")
        await asyncio.wait(halves)
        assert cluster.web.connections.open == 0
        assert cluster.refused == ["connection_limit", *["tls_handshake"] * 3]
        answer = await sent(cluster, HEALTH[:-2] + b"Connection: close\r\n\r\n", trusting)
        assert answer.endswith(b'{"status": "ok"}')

    with_doors(test, loop, http=limits(header_timeout_s=1.5, max_connections=3), tls=lambda: server)


def test_plain_http_at_a_tls_port_is_counted_and_logged_in_one_line(
    tls: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = TlsIdentity.load(tls / "server").server_context(demands_certificate=False)

    async def test(cluster: Doors) -> None:
        for _ in range(5):
            try:
                assert not (await sent(cluster, HEALTH)).startswith(b"HTTP/1.1 2")
            except ConnectionError:
                pass  # a reset says as much
        while cluster.web.connections.open:
            await asyncio.sleep(0.001)
        assert cluster.refused == ["tls_handshake"] * 5
        assert len(lines(caplog)) == 1

    with caplog.at_level(logging.WARNING):
        with_doors(test, http=limits(), tls=lambda: server)


def test_a_stop_waits_for_no_peer(tls: Path) -> None:
    server = TlsIdentity.load(tls / "server").server_context(demands_certificate=False)
    opened: list[asyncio.StreamWriter] = []

    async def test(cluster: Doors) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.http_port)
        opened.append(writer)
        while not cluster.web.connections.open:
            await asyncio.sleep(0)

    with_doors(test, http=limits(), tls=lambda: server)


@pytest.mark.parametrize("loop", LOOPS)
def test_renewed_certificates_are_used_without_a_restart(tls: Path, tmp_path: Path, loop: Loop) -> None:
    """A connection that is open goes on; the next one gets the certificate of then."""
    in_use, renewed = tmp_path / "in-use", tmp_path / "ca"
    issue_certificate(tls / "ca", in_use, CertificateRequest("dispatcher", "d", ("127.0.0.1",)))
    reloader = CertificateReloader(lambda: TlsIdentity.load(in_use))
    old = ssl.create_default_context(cafile=str(in_use / "ca.pem"))
    ask = HEALTH[:-2] + b"Connection: close\r\n\r\n"

    async def test(cluster: Doors) -> None:
        assert (await sent(cluster, ask, old)).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.http_port, ssl=old)
        make_ca(renewed)
        issue_certificate(renewed, in_use, CertificateRequest("dispatcher", "d", ("127.0.0.1",)), force=True)
        new = ssl.create_default_context(cafile=str(renewed / "ca.pem"))
        assert (await sent(cluster, ask, new)).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLCertVerificationError):
            await sent(cluster, ask, old)
        writer.write(ask)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()

    with_doors(test, loop, http=limits(), tls=lambda: reloader.server_context(demands_certificate=False))
