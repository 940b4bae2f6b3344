"""Several nodes as machines have them: a network namespace each, and a switch that can cut, slow and break.

Needs root, `ip`, `bridge` and `ss` (package iproute2) and `tc`. This side has an address at the switch, too. What nodes
share beyond it is the file system. Faults are silent where cables are: packets vanish, and no end is told.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.harness.namespaces import NoNamespaces

NOWHERE = "02:00:00:00:00:01"
"""A hardware address that no cable has: what is sent to it vanishes in the switch."""
FORWARDING, DISABLED = "3", "0"
"""States of a switch's port."""


class NodeNetwork:
    """Owns the namespaces, cables and the switch. `hosts`: each node's address."""

    def __init__(self, nodes: int) -> None:
        high, low = divmod(os.getpid(), 250)
        subnet = f"10.{80 + high % 100}.{low}"  # another one for each run of this machine
        self.switch = f"dnsw{os.getpid()}"
        self.here = f"{subnet}.254"
        self.names = [f"dunlin-{os.getpid()}-{node}" for node in range(nodes)]
        self.hosts = [f"{subnet}.{node + 1}" for node in range(nodes)]
        self._ports = [f"dp{os.getpid()}n{node}" for node in range(nodes)]

    def open(self) -> None:
        """Make them. Raises NoNamespaces."""
        run(f"ip link add {self.switch} type bridge stp_state 0")
        run(f"ip addr add {self.here}/24 dev {self.switch}")
        run(f"ip link set {self.switch} up")
        for name, host, port in zip(self.names, self.hosts, self._ports, strict=True):
            run(f"ip netns add {name}")
            run(f"ip link add {port} type veth peer name eth0 netns {name}")
            run(f"ip link set {port} master {self.switch}")
            run(f"ip link set {port} up")
            run(f"ip -n {name} link set lo up")
            run(f"ip -n {name} addr add {host}/24 dev eth0")
            run(f"ip -n {name} link set eth0 up")

    def close(self) -> None:
        """Take everything away that is there."""
        for name, port in zip(self.names, self._ports, strict=True):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", port], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.switch], capture_output=True, check=False)

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on a node."""
        return ["ip", "netns", "exec", self.names[node], *command]

    def isolate(self, node: int) -> None:
        """Cut a node off from the other nodes and from here."""
        run(f"bridge link set dev {self._ports[node]} state {DISABLED}")

    def rejoin(self, node: int) -> None:
        """Undo `isolate`."""
        run(f"bridge link set dev {self._ports[node]} state {FORWARDING}")

    def cut(self, node: int, other: int) -> None:
        """What `node` sends to `other` vanishes; the other direction works."""
        run(f"ip -n {self.names[node]} neigh replace {self.hosts[other]} lladdr {NOWHERE} nud permanent dev eth0")

    def mend(self, node: int, other: int) -> None:
        """Undo `cut`."""
        run(f"ip -n {self.names[node]} neigh del {self.hosts[other]} dev eth0", check=False)

    def slow(self, node: int, kilobits: int) -> None:
        """What goes to a node passes with so many kbit/s: messages come later, in order."""
        run(f"tc qdisc replace dev {self._ports[node]} root tbf rate {kilobits}kbit burst 4kb limit 4mb")

    def hurry(self, node: int) -> None:
        """Undo `slow`."""
        run(f"tc qdisc del dev {self._ports[node]} root", check=False)

    def break_streams(self, node: int, other: int) -> None:
        """End each TCP connection of `node` with `other`; the other end is told by a reset, if that gets through."""
        run(f"ip netns exec {self.names[node]} ss -K -t dst {self.hosts[other]}")


@contextmanager
def node_network(nodes: int) -> Iterator[NodeNetwork]:
    """The network, taken away at the end. Raises NoNamespaces."""
    made = NodeNetwork(nodes)
    try:
        made.open()
        yield made
    finally:
        made.close()


def run(line: str, check: bool = True) -> None:
    """Run a command. Raises NoNamespaces with what it said, if `check`."""
    try:
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespaces(f"`{line.split()[0]}` cannot be run ({error}): install the package iproute2") from None
    if done.returncode and check:
        raise NoNamespaces(f"{line}: {done.stderr.strip()}")
