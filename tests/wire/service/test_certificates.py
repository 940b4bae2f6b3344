"""A whole service, its certificates and those of an etcd, renewed while it runs."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.membership.embedded import EmbeddedConfig, EmbeddedEtcd
from dunlin.wire import certificate_reloader
from dunlin.wire.channels import open_channel
from dunlin.wire.security import TlsIdentity
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ServiceProcess
from tests.wire.ends import PATIENCE_S, Ear, eventually, run


def issue(root: Path, role: str) -> Path:
    """The directory of the holder of `role`, with a certificate that was just made."""
    issue_certificate(root / "ca", root / role, CertificateRequest(role, role, ("127.0.0.1",)), force=True)
    return root / role


async def connects(endpoint: str, identity: TlsIdentity) -> bool:
    async with open_channel(endpoint, identity, "monitor") as channel:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await channel.channel_ready()
        except TimeoutError:
            return False
    return True


def shown_certificate(endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_a_service_shows_a_renewed_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_reloader, "CHECK_S", 0.01)
    make_ca(tmp_path / "ca")
    files, client = issue(tmp_path, "monitor"), TlsIdentity.load(issue(tmp_path, "client"))

    async def scenario() -> None:
        etcd = await EmbeddedEtcd.start(
            EmbeddedConfig(tmp_path / "data", tls_dir=issue(tmp_path, "etcd")), client.channel_credentials
        )
        service = ServiceProcess(
            ServiceOptions("monitor", "monitor", (etcd.endpoint.removeprefix("https://"),), node="here", tls_dir=files)
        )
        await service.start(lambda address: Ear(), demands_certificate=False)
        before = await asyncio.to_thread(shown_certificate, service.endpoint)
        issue(tmp_path, "monitor")
        after = await asyncio.to_thread(shown_certificate, service.endpoint)
        assert after.strip() == (files / "cert.pem").read_text().strip() != before.strip()
        with caplog.at_level(logging.WARNING):
            (files / "cert.pem").write_text("nothing")
            await eventually(lambda: "goes on with the certificates read before" in caplog.text)
        assert await connects(service.endpoint, client)
        assert await service.stop() == 0
        await etcd.stop(0)

    run(scenario)
