"""The processes that should run: the newest of each name, its node, and the streams between them. Pure."""

from collections.abc import Mapping

from dunlin.effects import Address

STREAMS = {
    "instance": ("monitor", "global_manager", "kvstore", "dispatcher"),
    "dispatcher": ("monitor", "instance", "global_manager"),
    "global_manager": ("monitor", "instance", "dispatcher"),
    "kvstore": ("monitor", "instance"),
    "monitor": ("global_manager", "kvstore", "dispatcher", "instance"),
}
"""For each role, the roles with which its processes have streams."""
SPREAD_ROLES = ("instance", "kvstore")
"""Roles whose processes are spread over the nodes by the number in their names; others are on the first."""


class Roster:
    """The newest process of each role and name, on `nodes` nodes."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [f"node-{index}" for index in range(nodes)]
        self._current: dict[str, dict[str, Address]] = {}
        self._node_of: dict[Address, str] = {}

    @property
    def node_of(self) -> Mapping[Address, str]:
        """The node of each process, ended ones included."""
        return self._node_of

    def add(self, address: Address) -> str:
        """Enter a process as the newest of its name; returns its node."""
        number = address.name.rpartition("-")[2] if address.role in SPREAD_ROLES else "0"
        node = self.nodes[int(number) % len(self.nodes)]
        self._node_of[address] = node
        self._current.setdefault(address.role, {})[address.name] = address
        return node

    def remove(self, address: Address) -> None:
        """Remove a process; nothing if it is not the newest of its name."""
        if self.is_current(address):
            del self._current[address.role][address.name]

    def find(self, role: str, name: str) -> Address | None:
        """The newest process of that name, or None."""
        return self._current.get(role, {}).get(name)

    def is_current(self, address: Address) -> bool:
        """Whether it is the newest of its name."""
        return self.find(address.role, address.name) == address

    def of_role(self, role: str) -> list[Address]:
        """The current processes of a role, by name."""
        return sorted(self._current.get(role, {}).values())

    def all_processes(self) -> list[Address]:
        """All current processes, by role and name."""
        return sorted(address for there in self._current.values() for address in there.values())

    def partners(self, address: Address) -> list[Address]:
        """The processes that should have a stream with it, by start; of kvstores an instance has its node's alone."""
        there = (one for role in STREAMS[address.role] for one in self._current.get(role, {}).values())
        return [one for one in there if self._are_near(address, one)]

    def streams(self) -> list[tuple[Address, Address]]:
        """The streams that should be open, each once."""
        return [(one, other) for one in self.all_processes() for other in sorted(self.partners(one)) if one < other]

    def _are_near(self, one: Address, other: Address) -> bool:
        is_pool = {one.role, other.role} == {"instance", "kvstore"}
        return not is_pool or self._node_of[one] == self._node_of[other]
