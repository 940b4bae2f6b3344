"""One engine's use of the links: its copies to and from the host and its peers, and what they take from its steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from dunlin.cost.links import EngineLinks, NodeLinks
from simulator.links.flows import Flow, Flows, Later, Meter
from simulator.links.topology import Topology


@dataclass(eq=False, slots=True)
class Fabric:
    """All links of a cluster and what goes over them."""

    flows: Flows
    topology: Topology

    def ports(self, name: str, node: str, links: EngineLinks, wake: Callable[[Any], None]) -> "EnginePorts":
        """The ports of an engine, which was there before or is new; `wake(due)` gives it its timer."""
        self.topology.add_engine(name, node, links)
        return EnginePorts(self, name, links, wake)


def make_fabric(later: Later, nodes: NodeLinks | None = None) -> Fabric:
    """Links without a flow."""
    return Fabric(Flows(later), Topology(nodes))


@dataclass(eq=False, slots=True)
class EnginePorts:
    """The ends of an engine's links. `meter`: what copies took from its steps."""

    fabric: Fabric
    name: str
    links: EngineLinks
    wake: Callable[[Any], None]
    meter: Meter = field(default_factory=Meter)

    def copy_to_host(
        self, now_s: float, is_out: bool, left: float, whole: float, whole_s: float, priority: int, due: object
    ) -> Flow:
        """Copy `left` of `whole` bytes, which take `whole_s` on idle links, to the host or (not `is_out`) from it."""
        topology = self.fabric.topology
        path = topology.to_host(self.name) if is_out else topology.from_host(self.name)
        rate = whole / whole_s if whole_s > 0 else inf
        prices = [(self.meter, self.links.host_busy_share * whole_s / whole)]
        return self.fabric.flows.start(now_s, path, left, priority, lambda at_s: self.wake(due), rate, prices)

    def copy_to_peer(self, now_s: float, peer: "EnginePorts", byte_count: int, priority: int, due: object) -> Flow:
        """Write into a peer's memory."""
        path = self.fabric.topology.between(self.name, peer.name)
        prices = [(self.meter, self.links.send_byte_s), (peer.meter, peer.links.receive_byte_s)]
        return self.fabric.flows.start(now_s, path, byte_count, priority, lambda at_s: self.wake(due), meters=prices)

    def is_near(self, peer: "EnginePorts") -> bool:
        """Whether the peer's engine is on the same node."""
        return self.fabric.topology.are_near(self.name, peer.name)

    def look(self, now_s: float, byte_count: int, due: object) -> Flow:
        """Read what a peer wrote into the own memory: the engine itself does."""
        rate = self.fabric.topology.within(self.name)
        return self.fabric.flows.start(
            now_s, (), byte_count, 0, lambda at_s: self.wake(due), rate, [(self.meter, 1.0 / rate)]
        )

    def stop(self, now_s: float, flow: Flow) -> float:
        """End a copy before its time; returns the bytes that it did not carry."""
        return self.fabric.flows.stop(now_s, flow)
