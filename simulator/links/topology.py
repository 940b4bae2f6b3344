"""The links of engines and nodes, and the path that each kind of copy takes over them.

An engine has links of its own to each direction of PCIe, NVLink and the network; engines whose GPUs share a PCIe
switch share the switch's link to the host; a node's engines share its memory. Between nodes only the ends' network
links count: a switched network without a bottleneck of its own.
"""

from math import inf

from dunlin.cost.links import EngineLinks, NodeLinks
from simulator.links.flows import SimulatedLink


class _EngineEnd:
    """The links of one engine: pairs of out and in."""

    def __init__(
        self, name: str, node: str, links: EngineLinks, switches: list[tuple[SimulatedLink, SimulatedLink]]
    ) -> None:
        self.node = node
        self.rates = links
        # GPUs of several whole switches move no more than these carry.
        spread = len(switches) * links.switch
        pcie = min(links.pcie, spread) if links.pcie and spread else links.pcie or spread
        self.pcie = _pair(f"pcie {name}", pcie)
        self.nvlink = _pair(f"nvlink {name}", links.nvlink)
        self.nic = _pair(f"nic {name}", links.nic)
        self.switches = switches


class Topology:
    """The links of a cluster, made as engines and nodes are first named."""

    def __init__(self, nodes: NodeLinks | None = None) -> None:
        self._rates = nodes or NodeLinks()
        self._memory: dict[str, SimulatedLink] = {}
        self._nics: dict[str, tuple[SimulatedLink, SimulatedLink]] = {}
        self._switches: dict[tuple[str, int], tuple[SimulatedLink, SimulatedLink]] = {}
        self._gpus: dict[str, int] = {}
        self._ends: dict[str, _EngineEnd] = {}

    def add_engine(self, name: str, node: str, links: EngineLinks) -> None:
        """Give an engine the next free GPUs of its node. One of the same name keeps what it has."""
        if name in self._ends and self._ends[name].node == node:
            return
        first = self._gpus.get(node, 0)
        self._gpus[node] = first + links.gpus
        shared = links.gpus_per_switch
        numbers = range(first // shared, (first + links.gpus - 1) // shared + 1) if shared else range(0)
        switches = [self._switch(node, number, links.switch) for number in numbers]
        self._ends[name] = _EngineEnd(name, node, links, switches)

    def to_host(self, name: str) -> tuple[SimulatedLink, ...]:
        """From an engine's device memory to its node's."""
        return self._host_path(name, 0)

    def from_host(self, name: str) -> tuple[SimulatedLink, ...]:
        """From a node's memory to an engine's device memory."""
        return self._host_path(name, 1)

    def between(self, sender: str, receiver: str) -> tuple[SimulatedLink, ...]:
        """From one engine's device memory to another's: within a node by NVLink, else over the network."""
        here, there = self._ends[sender], self._ends[receiver]
        if self.are_near(sender, receiver):
            return here.nvlink[0], there.nvlink[1]
        return here.nic[0], there.nic[1]

    def are_near(self, one: str, other: str) -> bool:
        """Whether two engines are on one node."""
        return self._ends[one].node == self._ends[other].node

    def within(self, name: str) -> float:
        """Bytes per second at which an engine reads what a peer wrote into its memory."""
        return self._ends[name].rates.look or inf

    def between_hosts(self, here: str, there: str) -> tuple[SimulatedLink, ...]:
        """From one node's memory to another's, by the nodes' own network cards."""
        if here == there:
            return (self._node_memory(here),)
        return self._node_memory(here), self._nic(here)[0], self._nic(there)[1], self._node_memory(there)

    def links(self) -> list[SimulatedLink]:
        """All links that were named so far."""
        ends = [pair for end in self._ends.values() for pair in (end.pcie, end.nvlink, end.nic)]
        pairs = [*ends, *self._switches.values(), *self._nics.values()]
        return [*(link for pair in pairs for link in pair), *self._memory.values()]

    def _host_path(self, name: str, direction: int) -> tuple[SimulatedLink, ...]:
        end = self._ends[name]
        # An engine of several switches has them alone, and its own link is as wide as they are.
        shared = [end.switches[0][direction]] if len(end.switches) == 1 else []
        return (end.pcie[direction], *shared, self._node_memory(end.node))

    def _switch(self, node: str, number: int, bytes_per_s: float) -> tuple[SimulatedLink, SimulatedLink]:
        key = node, number
        if key not in self._switches:
            self._switches[key] = _pair(f"switch {node}/{number}", bytes_per_s)
        return self._switches[key]

    def _nic(self, node: str) -> tuple[SimulatedLink, SimulatedLink]:
        if node not in self._nics:
            self._nics[node] = _pair(f"nic {node}", self._rates.nic)
        return self._nics[node]

    def _node_memory(self, node: str) -> SimulatedLink:
        if node not in self._memory:
            self._memory[node] = SimulatedLink(f"memory {node}", self._rates.memory or inf)
        return self._memory[node]


def _pair(name: str, bytes_per_s: float) -> tuple[SimulatedLink, SimulatedLink]:
    return SimulatedLink(f"{name} out", bytes_per_s or inf), SimulatedLink(f"{name} in", bytes_per_s or inf)
