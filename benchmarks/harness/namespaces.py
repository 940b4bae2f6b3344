"""Two nodes as two machines have them: joined by a cable and nothing else. Needs root and `ip`.

The first node is where this runs, with the doors; the second is a network namespace behind a virtual cable, with a
kvstore and an instance of its own. What they share beyond the cable is the file system.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.etcd_cluster import EtcdCluster, members_here
from benchmarks.harness.fleet_status import placeable_count
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client
from dunlin.runtime.parent_death import die_with_parent_command

ROOT = Path(__file__).resolve().parents[2]
FAR_READY_S = 120.0


class NoNamespaces(Exception):
    """They cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class NamespaceLink:
    """`name` is the namespace at the far end; addresses without ports."""

    name: str
    near: str
    far: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` at the far end."""
        return ["ip", "netns", "exec", self.name, *command]


@contextmanager
def namespace_link() -> Iterator[NamespaceLink]:
    """A namespace and a cable to it, taken away at the end.

    Raises:
        NoNamespaces: not root, or no such kernel.
    """
    number = os.getpid() % 250
    made = NamespaceLink(f"dunlin-{os.getpid()}", f"10.78.{number}.1", f"10.78.{number}.2")
    near, far = f"dn{os.getpid()}", f"df{os.getpid()}"
    try:
        _ip(f"netns add {made.name}")
        _ip(f"link add {near} type veth peer name {far} netns {made.name}")
        _ip(f"addr add {made.near}/24 dev {near}")
        _ip(f"link set {near} up")
        _ip(f"-n {made.name} link set lo up")
        _ip(f"-n {made.name} addr add {made.far}/24 dev {far}")
        _ip(f"-n {made.name} link set {far} up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", near], capture_output=True, check=False)


@contextmanager
def two_nodes(transport: str = "auto", between_nodes: str = "sockets") -> Iterator[ClusterProcess]:
    """A deterministic cluster of two instances, one on each node, ready to take requests.

    Args:
        transport: `kvstore.exchange.transport`.
        between_nodes: `instance.peer_transfers.between_nodes`.

    Raises:
        NoNamespaces: as `namespace_link`.
        ClusterError: the first node did not start.
        TimeoutError: the second one did not join.
    """
    with namespace_link() as between:
        folder = Path(tempfile.mkdtemp(prefix="dunlin-bench-"))
        etcd = EtcdCluster(members_here(folder, 1, between.near))
        far: list[subprocess.Popen[bytes]] = []
        try:
            asyncio.run(etcd.start())
            endpoint = etcd.endpoints[0]
            flags = ("--instances", "1", "--deterministic", "--host", between.near, "--transport", transport)
            engines = ("--set", f"instance.peer_transfers.between_nodes={between_nodes}")
            near = ClusterProcess(*flags, *engines, "--etcd", endpoint, data_dir=folder)
            with near:
                far += _start_far(between, near.data_dir, endpoint, transport, engines)
                _await(near, instances=2)
                yield near
        finally:
            _end(far)
            etcd.stop()
        shutil.rmtree(folder, ignore_errors=True)  # after a failure the logs stay


def _start_far(
    between: NamespaceLink, data_dir: Path, etcd: str, transport: str, engines: Sequence[str]
) -> list[subprocess.Popen[bytes]]:
    common = ("--node", "far", "--listen", f"{between.far}:0", "--etcd", etcd, "--data-dir", str(data_dir))
    instance = ("--deterministic", "--threads", "1", "--name", "instance-far", *engines)
    return [
        _start(between, data_dir, "kvstore", *common, "--name", "kvstore-far", "--transport", transport),
        _start(between, data_dir, "instance", *common, *instance),
    ]


def _start(between: NamespaceLink, data_dir: Path, role: str, *flags: str) -> subprocess.Popen[bytes]:
    command = die_with_parent_command([sys.executable, "-m", f"services.{role}", *flags], os.getpid())
    with (data_dir / f"{role}-far.log").open("wb") as log:
        return subprocess.Popen(between.inside(command), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(cluster: ClusterProcess, instances: int) -> None:
    deadline_s = time.monotonic() + FAR_READY_S
    with Client(cluster.grpc) as client:
        while placeable_count(client.status()) < instances:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"the far node did not join within {FAR_READY_S:g} s; logs are in {cluster.data_dir}"
                )
            time.sleep(0.2)


def _ip(arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespaces(f"`ip` cannot be run: {error}") from None
    if done.returncode:
        raise NoNamespaces(f"ip {arguments}: {done.stderr.strip()}")
