"""Copies between two nodes share the link fairly; one that ends or stops leaves its share to the others."""

from collections.abc import Callable

import pytest

from simulator.cluster.world import World
from simulator.engine.peer_links import PeerLinks


class LinkBench:
    """Links of 100 bytes per second within a node, 10 between two, and when each copy arrived."""

    def __init__(self) -> None:
        self.world = World(0.0)
        self.links = PeerLinks(
            100.0, 10.0, lambda delay_s, act: self.world.call_later(delay_s, lambda: act(self.world.now_s))
        )
        self.arrived: dict[str, float] = {}

    def copy(self, name: str, byte_count: int, there: str = "b", at_s: float = 0.0) -> Callable[[float], None]:
        self.world.run_to(at_s)
        return self.links.copy(at_s, "a", there, byte_count, lambda now_s: self.arrived.update({name: round(now_s, 6)}))


def test_copies_share_a_link_fairly_and_the_rest_goes_faster_when_one_is_through() -> None:
    bench = LinkBench()
    bench.copy("long", 40)
    bench.copy("short", 10, at_s=1.0)
    bench.world.run_to(60.0)
    assert bench.arrived == {"short": 3.0, "long": 5.0}
    assert bench.links.carried_bytes == pytest.approx(50.0)


def test_copies_of_other_nodes_do_not_share() -> None:
    bench = LinkBench()
    bench.copy("far", 20)
    bench.copy("near", 200, there="a")
    bench.copy("other", 20, there="c")
    bench.world.run_to(60.0)
    assert bench.arrived == {"far": 2.0, "near": 2.0, "other": 2.0}


def test_a_copy_that_is_stopped_never_arrives_and_leaves_its_share() -> None:
    bench = LinkBench()
    bench.copy("kept", 20)
    stop = bench.copy("stopped", 20)
    bench.world.run_to(2.0)
    stop(2.0)
    stop(2.0)
    bench.world.run_to(60.0)
    assert bench.arrived == {"kept": 3.0}
    assert bench.links.carried_bytes == pytest.approx(30.0)


def test_a_link_without_limit_carries_at_once() -> None:
    arrived: list[float] = []
    world = World(0.0)
    links = PeerLinks(0.0, 0.0, lambda delay_s, act: world.call_later(delay_s, lambda: act(world.now_s)))
    links.copy(0.0, "a", "b", 1 << 40, arrived.append)
    world.run_to(1.0)
    assert arrived == [0.0]
