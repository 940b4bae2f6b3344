"""An etcd of several members on this machine, to kill, to stop and to start again one by one.

Campaigns and tests use it. Knows nothing of what is stored in it.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cli.launch.ports import claim_port
from dunlin.membership.client import EtcdClient, EtcdStatus
from dunlin.membership.connection import Timeouts
from dunlin.membership.embedded import find_binary
from dunlin.membership.errors import EtcdError
from dunlin.runtime.parent_death import die_with_parent_command

_HOST = "127.0.0.1"
_READY_S = 30.0
_QUICK = Timeouts(connect_s=0.5, call_s=1.0)


class EtcdNode:
    """Owns one member: its ports and data stay, its process comes and goes. `inside`: words before its command, such
    as those that enter a network namespace.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        client_port: int,
        peer_port: int,
        host: str = _HOST,
        inside: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.endpoint = f"{host}:{client_port}"
        self.peer_url = f"http://{host}:{peer_port}"
        self.initial_cluster = ""
        self._folder = folder
        self._inside = inside
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process, which may have ended."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it with what it has; from the main thread. It serves once most members do."""
        command = [*self._inside, *die_with_parent_command([find_binary(), *self._flags()], os.getpid())]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    @property
    def log(self) -> Path:
        """What it said."""
        return self._folder / f"{self.name}.log"

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """As if its machine had lost power. Again: nothing happens."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def status(self) -> EtcdStatus:
        """Its word about itself. Raises EtcdError."""
        client = EtcdClient([self.endpoint], timeouts=_QUICK)
        try:
            return await client.status()
        finally:
            await client.close()

    def _flags(self) -> list[str]:
        return [
            f"--name={self.name}",
            f"--data-dir={self._folder / self.name}",
            f"--listen-client-urls=http://{self.endpoint}",
            f"--advertise-client-urls=http://{self.endpoint}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={self.initial_cluster}",
            "--initial-cluster-token=chaos",
            "--experimental-initial-corrupt-check=true",
            "--logger=zap",
            "--log-level=warn",
            "--log-outputs=stderr",
        ]


class EtcdCluster:
    """Owns the members."""

    def __init__(self, nodes: list[EtcdNode]) -> None:
        self.nodes = nodes
        for node in self.nodes:
            node.initial_cluster = ",".join(f"{one.name}={one.peer_url}" for one in self.nodes)

    @property
    def endpoints(self) -> list[str]:
        """Of all members."""
        return [node.endpoint for node in self.nodes]

    def at(self, endpoint: str) -> EtcdNode:
        """The member of that endpoint."""
        return next(node for node in self.nodes if node.endpoint == endpoint)

    async def start(self) -> None:
        """Start all members and wait until they serve."""
        for node in self.nodes:
            node.start()
        await self.ready()

    async def leader(self) -> EtcdNode:
        """The member that the others follow; waits until there is one. Raises TimeoutError."""
        async with asyncio.timeout(_READY_S):
            while True:
                for node in self.nodes:
                    with contextlib.suppress(EtcdError):
                        status = await node.status()
                        if status.leader == status.member:
                            return node
                await asyncio.sleep(0.05)

    async def ready(self) -> None:
        """Return when all members are there and agree on a leader. Raises TimeoutError."""
        async with asyncio.timeout(_READY_S):
            while not await self._agreed():  # noqa: ASYNC110 (only they can tell)
                await asyncio.sleep(0.05)

    async def revisions(self) -> list[int]:
        """How far each member is, by its own word."""
        return [(await node.status()).revision for node in self.nodes]

    def stop(self) -> None:
        """Kill all members."""
        for node in self.nodes:
            node.kill()

    async def _agreed(self) -> bool:
        try:
            leaders = {(await node.status()).leader for node in self.nodes}
        except EtcdError:
            return False
        return len(leaders) == 1 and 0 not in leaders


def members_here(folder: Path, count: int = 3, host: str = _HOST) -> list[EtcdNode]:
    """Members on this machine, with ports that are free now."""
    taken: set[int] = set()
    for _ in range(2 * count):
        taken.add(claim_port(host, 0, "etcd", taken))
    ports = sorted(taken)
    return [
        EtcdNode(f"etcd{number}", folder, ports[2 * number], ports[2 * number + 1], host) for number in range(count)
    ]


@asynccontextmanager
async def etcd_cluster(folder: Path, count: int = 3) -> AsyncIterator[EtcdCluster]:
    """A running cluster. Its data stay in `folder`."""
    cluster = EtcdCluster(members_here(folder, count))
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.stop()
