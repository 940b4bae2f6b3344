"""Who is meant to be there: the newest process of each name, where it runs, and which of them have streams. Pure."""

from collections.abc import Mapping

from dunlin.effects import Address

STREAMS = {
    "instance": ("monitor", "global_manager", "kvstore", "dispatcher"),
    "dispatcher": ("monitor", "instance"),
    "global_manager": ("monitor", "instance"),
    "kvstore": ("monitor", "instance"),
    "monitor": ("global_manager", "kvstore", "dispatcher", "instance"),
}
"""The roles with which each has a stream."""
SPREAD_ROLES = ("instance", "kvstore")
"""The roles whose processes are spread over the nodes by the number in their names; the others are on the first."""


class Roster:
    """Processes by role and name, on so many nodes."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [f"node-{index}" for index in range(nodes)]
        self._current: dict[str, dict[str, Address]] = {}
        self._node_of: dict[Address, str] = {}

    @property
    def node_of(self) -> Mapping[Address, str]:
        """Where each runs, or ran."""
        return self._node_of

    def add(self, address: Address) -> str:
        """It is the newest of its name; the node that it runs on."""
        number = address.name.rpartition("-")[2] if address.role in SPREAD_ROLES else "0"
        node = self.nodes[int(number) % len(self.nodes)]
        self._node_of[address] = node
        self._current.setdefault(address.role, {})[address.name] = address
        return node

    def remove(self, address: Address) -> None:
        """It is not meant to be there any more; nothing if another of its name already is."""
        if self.is_current(address):
            del self._current[address.role][address.name]

    def find(self, role: str, name: str) -> Address | None:
        """The newest process of that name."""
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
        """Who has a stream with it, in the order of their starts; an instance has one with its node's kvstore alone."""
        there = (one for role in STREAMS[address.role] for one in self._current.get(role, {}).values())
        return [one for one in there if self._are_near(address, one)]

    def streams(self) -> list[tuple[Address, Address]]:
        """The streams that there should be, open or not."""
        return [(one, other) for one in self.all_processes() for other in sorted(self.partners(one)) if one < other]

    def _are_near(self, one: Address, other: Address) -> bool:
        is_pool = {one.role, other.role} == {"instance", "kvstore"}
        return not is_pool or self._node_of[one] == self._node_of[other]
