"""Latencies by place, and bytes that share a link: the most urgent first, one after another."""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import pytest

from dunlin.effects import Address
from dunlin.messages.types import Priority
from simulator.cluster.network import Latencies, NetworkLinks, NetworkSpec

I0, I1, ENGINE = Address("instance", "i0", 1), Address("instance", "i1", 2), Address("engine", "i0")
CLIENT = Address("client", "c")
SPEC = NetworkSpec(engine_s=0.0001, node_s=0.001, link_s=0.01, bytes_per_s=1000.0)


class Later:
    """Calls back in virtual time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = 0

    def __call__(self, delay_s: float, act: Callable[[float], None]) -> None:
        self._numbers += 1
        heappush(self._due, (self.now_s + delay_s, self._numbers, act))

    def run(self) -> None:
        while self._due:
            self.now_s, _, act = heappop(self._due)
            act(self.now_s)


@pytest.mark.parametrize(
    ("one", "other", "latency_s"),
    [(I0, ENGINE, 0.0001), (ENGINE, I0, 0.0001), (I0, I0, 0.001), (I0, I1, 0.01), (CLIENT, I0, 0.01)],
)
def test_a_stream_takes_what_its_ends_are_apart(one: Address, other: Address, latency_s: float) -> None:
    assert Latencies(SPEC, {I0: "a", I1: "b"})(one, other) == latency_s


def arrivals(*asked: tuple[str, int, Priority, str]) -> list[tuple[str, float]]:
    """When each named parcel of (name, bytes, priority, to) arrives; all are given at 0 s."""
    later, arrived = Later(), list[tuple[str, float]]()
    links = NetworkLinks(SPEC, later)

    def note(name: str, now_s: float) -> None:
        arrived.append((name, round(now_s, 6)))

    for name, size, priority, there in asked:
        links.transfer("a", there, size, priority, partial(note, name))
    later.run()
    assert links.carried_bytes == sum(size for _, size, _, _ in asked)
    return arrived


def test_bytes_take_the_bandwidth_one_after_another() -> None:
    kv = Priority.KV
    assert arrivals(("x", 1000, kv, "b"), ("y", 500, kv, "b")) == [("x", 1.01), ("y", 1.52)]


def test_what_is_urgent_goes_before_what_waits() -> None:
    parcels = (("x", 1000, Priority.CHECKPOINT, "b"), ("y", 1000, Priority.CHECKPOINT, "b"), ("z", 0, Priority.KV, "b"))
    assert [name for name, _ in arrivals(*parcels)] == ["x", "z", "y"]


def test_two_links_do_not_wait_for_each_other() -> None:
    kv = Priority.KV
    assert arrivals(("x", 1000, kv, "b"), ("y", 1000, kv, "c")) == [("x", 1.01), ("y", 1.01)]


def test_without_a_limit_only_the_latency_counts() -> None:
    later, arrived = Later(), list[float]()
    NetworkLinks(NetworkSpec(link_s=0.25), later).transfer("a", "b", 10**12, Priority.KV, arrived.append)
    later.run()
    assert arrived == [0.25]


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="node_s is -1"):
        NetworkSpec(node_s=-1)
