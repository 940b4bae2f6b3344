"""The etcd unit and its example file make a cluster of three with mutual TLS that outlives one member."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.membership.client import EtcdClient
from dunlin.membership.embedded import find_binary
from dunlin.membership.errors import EtcdError
from dunlin.wire.security import TlsIdentity

FOLDER = "deploy/etcd"
UNIT = "etcd-dunlin.service"
MEMBERS = (1, 2, 3)


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def variables(root: Path) -> dict[str, str]:
    """ETCD_* as the unit and the example file set them, for the first member."""
    inside = [line.removeprefix("Environment=") for line in lines_of(root / FOLDER / UNIT) if "Environment=" in line]
    words = [*" ".join(inside).split(), *lines_of(root / FOLDER / "etcd.env")]
    return dict(word.split("=", 1) for word in words)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def adapted(text: str, member: int, ports: dict[str, int], folder: Path) -> str:
    """The example's value with loopback's ports, and this member's name, for the addresses of three machines."""
    here = text.replace("%S", str(folder / f"state-{member}")).replace("/etc/dunlin/etcd", str(folder / "certificates"))
    here = here.replace(",https://127.0.0.1:2379", "")
    if "=https" not in here:
        here = here.replace("etcd-1", f"etcd-{member}").replace("10.0.0.1", f"10.0.0.{member}")
    return re.sub(r"10\.0\.0\.\d:\d+", lambda found: f"127.0.0.1:{ports[found[0]]}", here)


@contextmanager
def member(root: Path, number: int, ports: dict[str, int], folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    chosen = {name: adapted(text, number, ports, folder) for name, text in variables(root).items()}
    Path(chosen["ETCD_DATA_DIR"]).mkdir(parents=True, mode=0o700)
    with (folder / f"log-{number}").open("wb") as log:
        process = subprocess.Popen([find_binary()], env={"PATH": os.environ["PATH"], **chosen}, stderr=log, stdout=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def serves(endpoints: list[str], security: TlsIdentity, value: bytes) -> None:
    """Write and read at the cluster, for as long as it takes to elect a leader."""
    client = EtcdClient(endpoints, credentials=security.channel_credentials)
    try:
        deadline_s = time.monotonic() + 300
        while True:
            try:
                await client.put("/dunlin/test", value)
                break
            except EtcdError:
                assert time.monotonic() < deadline_s, "no leader after 300 s"
                await asyncio.sleep(0.1)
        read = await client.get("/dunlin/test")
        assert read is not None
        assert read.value == value
    finally:
        await client.close()


@pytest.mark.processes
def test_three_members_of_the_unit_serve_and_outlive_one(root: Path, tmp_path: Path) -> None:
    make_ca(tmp_path / "ca")
    issue_certificate(tmp_path / "ca", tmp_path / "certificates", CertificateRequest("etcd", "*", ("127.0.0.1",)))
    issue_certificate(tmp_path / "ca", tmp_path / "client", CertificateRequest("client", "me"))
    security = TlsIdentity.load(tmp_path / "client")
    places = [f"10.0.0.{number}:{port}" for number in MEMBERS for port in (2379, 2380)]
    ports = dict(zip(places, free_ports(len(places)), strict=True))
    endpoints = [f"127.0.0.1:{ports[f'10.0.0.{number}:2379']}" for number in MEMBERS]
    with ExitStack() as stack:
        processes = [stack.enter_context(member(root, number, ports, tmp_path)) for number in MEMBERS]
        asyncio.run(serves(endpoints, security, b"three"))
        waited = waiting(root, endpoints[1], str(tmp_path / "client"), limit_s=60)
        assert waited.returncode == 0, waited.stderr
        assert waiting(root, endpoints[1]).returncode == 1, "it answers without TLS"
        processes[0].kill()
        asyncio.run(serves(endpoints[1:], security, b"two"))
    # etcd warns of a variable that it does not know, and starts.
    log = (tmp_path / "log-1").read_text()
    assert "unrecognized environment variable" not in log
    assert '"initial-corrupt-check":true' in log


def waiting(root: Path, endpoint: str, *tls: str, limit_s: int = 1) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(root / "deploy/systemd/await_etcd.py"), endpoint, str(limit_s), *tls]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_waiting_with_certificates_that_are_not_there_says_so(root: Path, tmp_path: Path) -> None:
    done = waiting(root, "127.0.0.1:1", str(tmp_path))
    assert done.returncode == 1
    assert "DUNLIN_ETCD_TLS" in done.stderr
    assert "Traceback" not in done.stderr


def test_systemd_takes_the_unit(root: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    text = (root / FOLDER / UNIT).read_text()
    (tmp_path / UNIT).write_text(text.replace("/usr/local/bin/etcd", "/bin/true"))
    command = ["systemd-analyze", "verify", str(tmp_path / UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
