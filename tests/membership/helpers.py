"""A private etcd, clients that close, and waiting with a limit."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import Timeouts
from dunlin.membership.embedded import EmbeddedConfig, EmbeddedEtcd, find_binary

QUICK = Timeouts(connect_s=0.5, call_s=1.0)
PATIENT = Timeouts(connect_s=60.0, call_s=120.0)
"""Of what the test itself asks an etcd that is there, on a busy machine."""


@asynccontextmanager
async def client_of(*endpoints: str, timeouts: Timeouts = PATIENT) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(endpoints, timeouts=timeouts)
    try:
        yield client
    finally:
        await client.close()


class PrivateEtcd:
    """An etcd to kill, pause and restart with its data and its ports."""

    def __init__(self, running: EmbeddedEtcd) -> None:
        self.running = running

    @property
    def endpoint(self) -> str:
        return self.running.endpoint

    async def kill(self) -> None:
        os.kill(self.running.pid, signal.SIGKILL)
        await self.running.wait()

    async def restart(self) -> None:
        self.running = await EmbeddedEtcd.start(self.running.config)

    async def pause(self, duration_s: float) -> None:
        os.kill(self.running.pid, signal.SIGSTOP)
        await asyncio.sleep(duration_s)
        os.kill(self.running.pid, signal.SIGCONT)


@asynccontextmanager
async def private_etcd(data_dir: Path) -> AsyncIterator[PrivateEtcd]:
    etcd = PrivateEtcd(await EmbeddedEtcd.start(EmbeddedConfig(data_dir)))
    try:
        yield etcd
    finally:
        await etcd.running.stop()


async def until(condition: Callable[[], bool], within_s: float = 300.0) -> None:
    """Wait for the condition. Fails the test when it never holds; a busy machine may take its time."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.01)


def demand_users(endpoint: str) -> None:
    """Have an etcd ask who calls: root (secret), and dunlin (hello) with the rights of docs/operating.md."""
    command = [str(Path(find_binary()).with_name("etcdctl")), f"--endpoints={endpoint}"]
    for line in (
        "user add root:secret",
        "user grant-role root root",
        "role add dunlin",
        "role grant-permission dunlin readwrite /dunlin/ --prefix",
        "user add dunlin:hello",
        "user grant-role dunlin dunlin",
        "auth enable",
    ):
        subprocess.run([*command, *line.split()], check=True, capture_output=True, env={"ETCDCTL_API": "3"})
