"""The latencies of a simulated cluster's messages, by the nodes of their ends. Bytes are `simulator/links`'s."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from dunlin.cost.processes import ProcessCosts
from dunlin.effects import Address

ENGINE_HOP_S = 5e-5
"""Seconds of latency between instance and engine, where the CPU time of both is charged separately."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Latencies of one way, in seconds.

    `engine_s` is between an instance and its own engine, `node_s` between processes of one node, `link_s` between
    nodes and wherever one end is on no node (clients, etcd).

    Raises:
        ValueError: something is negative.
    """

    engine_s: float = 0.001
    node_s: float = 0.001
    link_s: float = 0.001

    def __post_init__(self) -> None:
        for name in ("engine_s", "node_s", "link_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: needs 0 or more")


def network_beside(host: ProcessCosts | None) -> NetworkSpec:
    """The latencies between processes whose time was measured; the usual ones where it was not."""
    return NetworkSpec() if host is None else NetworkSpec(ENGINE_HOP_S, host.hop_s, host.hop_s)


class Latencies:
    """The latency of a stream between two addresses, by their nodes."""

    def __init__(self, spec: NetworkSpec, node_of: Mapping[Address, str]) -> None:
        self._spec = spec
        self._node_of = node_of

    def __call__(self, one: Address, other: Address) -> float:
        """Seconds."""
        if one.role == "engine" or other.role == "engine":
            return self._spec.engine_s
        here = self._node_of.get(one)
        is_local = here is not None and here == self._node_of.get(other)
        return self._spec.node_s if is_local else self._spec.link_s


LOCAL_ROLES = ("engine", "dialing", "transport")
"""Roles whose messages cross no network."""


class Jitter:
    """Seconds beyond a stream's latency: up to `latency_s`, and `lag_s` of a slow receiver."""

    def __init__(self, latency_s: float, draw: Random) -> None:
        self.lag_s: dict[Address, float] = {}
        self._latency_s = latency_s
        self._draw = draw

    def __call__(self, sender: Address, to: Address) -> float:
        """Seconds."""
        lag_s = self.lag_s.get(to, 0.0) if self.lag_s else 0.0
        if sender.role in LOCAL_ROLES or to.role in LOCAL_ROLES:
            return lag_s
        return self._latency_s * self._draw.random() + lag_s
