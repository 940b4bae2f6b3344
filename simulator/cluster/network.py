"""The network between nodes: latencies of messages, and times of transfers that share a link.

A message is small and takes a latency that depends on its ends' nodes. A region of KV takes the bandwidth of the link
between two nodes; one transfer at a time, the most urgent first. Knows nodes and no process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from dunlin.effects import Address
from dunlin.messages.types import Priority


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Latencies of one way, in seconds, and the bandwidth of one direction between two nodes; 0: without limit.

    `engine_s` is between an instance and its own engine, `node_s` between processes of one node, `link_s` between
    nodes and wherever one end is on no node (clients, etcd). `copy_bytes_per_s`: the bandwidth of copies between the
    engines of one node; 0: without limit.

    Raises:
        ValueError: something is negative.
    """

    engine_s: float = 0.001
    node_s: float = 0.001
    link_s: float = 0.001
    bytes_per_s: float = 0.0
    copy_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("engine_s", "node_s", "link_s", "bytes_per_s", "copy_bytes_per_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: needs 0 or more")


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


@dataclass(slots=True)
class _Link:
    """One direction between two nodes: waiting transfers by priority, then age, and whether one is under way."""

    waiting: list[tuple[int, int, int, Callable[[float], None]]] = field(default_factory=list)
    is_busy: bool = False


class NetworkLinks:
    """Transfers bytes between nodes. `later(delay_s, call)` calls `call(now_s)` after `delay_s` seconds."""

    def __init__(self, spec: NetworkSpec, later: Callable[[float, Callable[[float], None]], None]) -> None:
        self.carried_bytes = 0
        self._spec = spec
        self._later = later
        self._links: dict[tuple[str, str], _Link] = {}
        self._numbers = 0

    def transfer(
        self, here: str, there: str, byte_count: int, priority: Priority, arrived: Callable[[float], None]
    ) -> None:
        """Call `arrived(now_s)` when `byte_count` bytes arrived, after transfers that are more urgent or older."""
        link = self._links.setdefault((here, there), _Link())
        self._numbers += 1
        heappush(link.waiting, (priority, self._numbers, byte_count, arrived))
        if not link.is_busy:
            self._begin(link)

    def _begin(self, link: _Link) -> None:
        link.is_busy = bool(link.waiting)
        if not link.waiting:
            return
        _, _, byte_count, arrived = heappop(link.waiting)
        took_s = byte_count / self._spec.bytes_per_s if self._spec.bytes_per_s else 0.0

        def through(now_s: float) -> None:
            self.carried_bytes += byte_count
            self._begin(link)
            arrived(now_s)

        self._later(self._spec.link_s + took_s, through)
