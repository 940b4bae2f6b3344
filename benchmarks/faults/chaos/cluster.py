"""Three nodes played on this machine: on each a disk, an etcd member, a kvstore, instances and what else it has.

Every process runs in its node's network namespace and in a time namespace with a clock offset of its own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.harness.etcd_cluster import EtcdCluster, EtcdNode
from benchmarks.harness.namespaces import NoNamespaces
from benchmarks.harness.node_network import NodeNetwork
from benchmarks.harness.report import say
from cli.launch.cluster_state import DataDirLock
from cli.launch.process_specs import ProcessSpec
from cli.launch.process_starter import start_program
from cli.launch.restart_policy import RestartPolicy
from cli.launch.supervisor import SupervisedProcess, Supervisor
from dunlin.engine.process.options import ENGINE_MODULE
from dunlin.runtime.parent_death import die_with_parent_command
from dunlin.runtime.procfs import command_line, descendants

DISK_MIB = 240
ROLES_OF_NODES = (
    ("monitor", "global_manager", "dispatcher", "kvstore"),
    ("global_manager", "dispatcher", "kvstore"),
    ("kvstore",),
)
"""And instances, as many on each."""
STANDBY = "instance-0"
"""The instance that has an engine that stands by; the others load the next one when they need it: both ways back are
taken.
"""
PORTS = {"monitor": 7000, "dispatcher": 7070}
HTTP_PORT, METRICS_PORT, ETCD_PORT, PEER_PORT = 8000, 9100, 2379, 2380
RESTARTS = RestartPolicy(first_delay_s=0.5, longest_delay_s=4.0, limit=1000)


class NodeDisk:
    """Owns a small file system in memory, a node's disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_full = False

    def mount(self) -> None:
        """Make it. Raises NoNamespaces: no right to mount."""
        self.folder.mkdir(parents=True)
        line = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(self.folder)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNamespaces(f"{' '.join(line)}: {done.stderr.strip()}")

    def fill(self) -> None:
        """Leave no room."""
        self.is_full = True
        with suppress(OSError), (self.folder / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))

    def free(self) -> None:
        """Make room again."""
        self.is_full = False
        (self.folder / "fill").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Take it away; again, or if it was never there: nothing happens."""
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)


class LiveCluster:
    """Owns the processes. `killed`: pids that the run itself ends; `deaths`: processes that ended otherwise."""

    def __init__(
        self, network: NodeNetwork, folder: Path, words: Sequence[str], skews: Sequence[float], per_node: int = 1
    ) -> None:
        self.network = network
        self.killed: set[int] = set()
        self.deaths: list[str] = []
        self.disks = [NodeDisk(folder / name) for name in network.names]
        self.etcd = EtcdCluster([self._member(node) for node in range(len(network.names))])
        self.stopped_etcd: set[str] = set()
        """Names of the members that are to stay away."""
        self._dir = DataDirLock(folder)
        specs = service_specs(network, folder, self.etcd.endpoints, words, skews, per_node)
        self._noted: set[int] = set()
        start = partial(start_program, environment=_environment(folder))
        self._supervisor = Supervisor(specs, self._dir, start, RESTARTS, lambda text: say(f"  {text}"))

    @property
    def processes(self) -> list[SupervisedProcess]:
        """All services."""
        return self._supervisor.managed

    @property
    def doors(self) -> list[str]:
        """The dispatchers' gRPC doors."""
        return [
            f"{host}:{PORTS['dispatcher']}"
            for host, roles in zip(self.network.hosts, ROLES_OF_NODES, strict=True)
            if "dispatcher" in roles
        ]

    @property
    def monitor(self) -> str:
        """The monitor's door."""
        return f"{self.network.hosts[0]}:{PORTS['monitor']}"

    def logs(self) -> Iterator[Path]:
        """The log of each process."""
        return self._dir.log("x").parent.glob("*.log")

    async def start(self) -> None:
        """Start etcd, wait for it, and start the services."""
        for disk in self.disks:
            disk.mount()
        await self.etcd.start()
        self._supervisor.start()

    def tick(self) -> None:
        """Start again what has ended, and note what ended by itself."""
        for process in self.processes:
            child = process.child
            if child is None or not child.exited() or child.pid in self.killed | self._noted:
                continue
            self._noted.add(child.pid)
            self.deaths.append(f"{process.spec.name} (pid {child.pid}) ended with {child.exit_description}")
        self._supervisor.tick()
        for member, disk in zip(self.etcd.nodes, self.disks, strict=True):
            if member.has_ended and member.name not in self.stopped_etcd and not disk.is_full:
                say(f"  {member.name} has ended and is started again")
                member.start()

    def of_role(self, role: str) -> list[SupervisedProcess]:
        """The services of a role that run, in order of their names."""
        return [one for one in self.processes if one.spec.role == role and is_running(one)]

    def pid_of(self, process: SupervisedProcess) -> int:
        """Its process id."""
        assert process.child is not None
        return process.child.pid

    def engines_of(self, instance: SupervisedProcess) -> list[int]:
        """The engine processes of an instance, in the order of their start."""
        found = []
        for pid in sorted(descendants(self.pid_of(instance))):
            with suppress(OSError):
                if f" -m {ENGINE_MODULE} " in command_line(pid):
                    found.append(pid)
        return found

    def close(self) -> None:
        """End every process, then etcd, and take the disks away."""
        self._supervisor.stop(8.0)
        self.etcd.stop()
        for disk in self.disks:
            disk.unmount()
        self._dir.close()

    def _member(self, node: int) -> EtcdNode:
        inside, host = self.network.inside(node, ()), self.network.hosts[node]
        return EtcdNode(f"etcd{node}", self.disks[node].folder, ETCD_PORT, PEER_PORT, host, inside)


def is_running(process: SupervisedProcess) -> bool:
    """Whether the supervised process is there."""
    return process.child is not None and not process.child.exited()


def names_of_nodes(per_node: int) -> list[list[tuple[str, str]]]:
    """For each node the (name, role) of its services, `per_node` instances among them."""
    found = []
    for node, roles in enumerate(ROLES_OF_NODES):
        instances = [(f"instance{number or ''}-{node}", "instance") for number in range(per_node)]
        found.append([*((f"{role.replace('_', '-')}-{node}", role) for role in roles), *instances])
    return found


def service_specs(
    network: NodeNetwork,
    folder: Path,
    etcd: Sequence[str],
    words: Sequence[str],
    skews: Sequence[float],
    per_node: int = 1,
) -> tuple[ProcessSpec, ...]:
    """Every service with its command line. `skews`: clock offsets in seconds, assigned in turn."""
    specs: list[ProcessSpec] = []
    settings = [f"--set={word}" for word in words]
    for node, named in enumerate(names_of_nodes(per_node)):
        for name, role in named:
            host = network.hosts[node]
            listen = f"{host}:{PORTS.get(role, 0)}"
            flags = ["--name", name, "--node", network.names[node], "--listen", listen, "--etcd", ",".join(etcd)]
            flags += ["--data-dir", str(folder / network.names[node]), "--parent-pid", str(os.getpid())]
            command = [sys.executable, "-P", "-m", f"services.{role}", *flags, *_flags_of(name, role, host), *settings]
            tied = die_with_parent_command(command, os.getpid())
            offset = str(int(skews[len(specs) % len(skews)]))
            clocked = ["unshare", "--time", "--monotonic", offset, "--boottime", offset, *tied]
            specs.append(ProcessSpec(name, role, tuple(network.inside(node, clocked))))
    return tuple(specs)


def _flags_of(name: str, role: str, host: str) -> list[str]:
    """What a process has beside the common flags."""
    if role == "instance":
        return [] if name == STANDBY else ["--no-standby"]
    if role == "dispatcher":
        return ["--http", f"{host}:{HTTP_PORT}"]
    return ["--metrics-port", str(METRICS_PORT)] if role == "monitor" else []


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    root = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {**kept, "PYTHONUNBUFFERED": "1", "DUNLIN_MODELS": str(folder / "models")}


@contextmanager
def live_cluster(
    network: NodeNetwork, folder: Path, words: Sequence[str], skews: Sequence[float], per_node: int = 1
) -> Iterator[LiveCluster]:
    """A cluster whose processes are ended at the end, however it ends."""
    made = LiveCluster(network, folder, words, skews, per_node)
    try:
        yield made
    finally:
        began_s = time.monotonic()
        made.close()
        say(f"all processes have ended after {time.monotonic() - began_s:.0f} s")
