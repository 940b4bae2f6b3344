"""Bytes on shared links: exact times of sharing, priorities and directions, and what holds for any mixture of flows."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cluster.world import World
from simulator.links.flows import Flow, Flows, Meter, SimulatedLink


class Bench:
    """Flows in a world, and when each arrived, by name."""

    def __init__(self, chunk_bytes: int = 10) -> None:
        self.world = World(0.0)
        self.flows = Flows(self.world.call_at, chunk_bytes)
        self.arrived: dict[str, float] = {}

    def start(
        self,
        name: str,
        byte_count: float,
        *path: SimulatedLink,
        at_s: float = 0.0,
        priority: int = 1,
        most: float = inf,
        meters: tuple[tuple[Meter, float], ...] = (),
    ) -> Flow:
        self.world.run_to(at_s)
        return self.flows.start(
            at_s, path, byte_count, priority, lambda now_s: self.arrived.update({name: round(now_s, 6)}), most, meters
        )

    def run(self) -> dict[str, float]:
        self.world.run_to(10_000.0)
        return self.arrived


def test_two_flows_share_a_link_and_the_rest_goes_faster_when_one_is_through() -> None:
    bench, link = Bench(), SimulatedLink("l", 10.0)
    bench.start("long", 40, link)
    bench.start("short", 10, link, at_s=1.0)
    assert bench.run() == {"short": 3.0, "long": 5.0}
    assert link.carried_bytes == pytest.approx(50.0)


def test_an_urgent_flow_waits_for_the_rest_of_one_chunk_and_never_for_a_payload() -> None:
    bench, link = Bench(chunk_bytes=10), SimulatedLink("l", 10.0)
    bench.start("kv", 2000, link, priority=1)
    bench.start("activation", 5, link, at_s=100.3, priority=0)
    # At 100.3 s the 101st chunk has 7 bytes left: 0.7 s. Then the activation has the link alone for 0.5 s.
    assert bench.run() == {"activation": 101.5, "kv": 200.5}


def test_an_urgent_flow_does_not_wait_where_the_link_has_room() -> None:
    bench, link = Bench(), SimulatedLink("l", 10.0)
    bench.start("kv", 20, link, priority=1, most=5.0)
    bench.start("activation", 5, link, at_s=1.0, priority=0, most=5.0)
    assert bench.run() == {"activation": 2.0, "kv": 4.0}


def test_a_less_urgent_flow_has_what_the_others_leave() -> None:
    bench, link = Bench(), SimulatedLink("l", 10.0)
    bench.start("urgent", 20, link, priority=0, most=8.0)
    bench.start("later", 20, link, priority=2)
    assert bench.run() == {"urgent": 2.5, "later": 4.0}


def test_what_a_slow_flow_cannot_use_is_the_others_share() -> None:
    bench, link = Bench(), SimulatedLink("l", 10.0)
    bench.start("slow", 20, link, most=2.0)
    bench.start("fast", 80, link)
    assert bench.run() == {"slow": 10.0, "fast": 10.0}


def test_directions_do_not_share() -> None:
    bench, out, into = Bench(), SimulatedLink("out", 10.0), SimulatedLink("in", 10.0)
    bench.start("there", 20, out)
    bench.start("back", 20, into)
    assert bench.run() == {"there": 2.0, "back": 2.0}


def test_the_narrowest_link_decides_and_what_it_leaves_elsewhere_is_the_others() -> None:
    bench, mine, common, theirs = (
        Bench(),
        SimulatedLink("mine", 2.0),
        SimulatedLink("common", 10.0),
        SimulatedLink("theirs", 100.0),
    )
    bench.start("narrow", 20, mine, common)
    bench.start("wide", 80, common, theirs)
    assert bench.run() == {"narrow": 10.0, "wide": 10.0}


def test_a_flow_that_is_stopped_never_arrives_and_leaves_its_share() -> None:
    bench, link = Bench(), SimulatedLink("l", 10.0)
    bench.start("kept", 20, link)
    stopped = bench.start("stopped", 20, link)
    bench.world.run_to(2.0)
    assert bench.flows.stop(2.0, stopped) == pytest.approx(10.0)
    assert bench.flows.stop(2.0, stopped) == pytest.approx(10.0)
    assert bench.run() == {"kept": 3.0}
    assert link.carried_bytes == pytest.approx(30.0)


def test_a_flow_that_is_stopped_before_it_had_its_turn_takes_nothing() -> None:
    bench, link = Bench(chunk_bytes=100), SimulatedLink("l", 10.0)
    bench.start("kv", 100, link)
    waiting = bench.start("activation", 50, link, at_s=1.0, priority=0)
    assert bench.flows.stop(1.0, waiting) == 50.0
    assert bench.run() == {"kv": 10.0}


def test_links_without_limit_carry_at_once() -> None:
    bench = Bench()
    bench.start("a", 1 << 40, SimulatedLink("l"))
    bench.start("b", 1 << 40)
    bench.start("c", 0, SimulatedLink("narrow", 1.0))
    assert bench.run() == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_a_meter_counts_what_flows_take_while_they_go_on() -> None:
    bench, link, meter = Bench(), SimulatedLink("l", 10.0), Meter()
    bench.start("x", 20, link, meters=((meter, 0.01),))
    bench.start("y", 20, link)
    bench.world.run_to(2.0)
    assert meter.take(2.0) == pytest.approx(0.1)
    assert meter.take(2.0) == 0.0
    bench.run()
    assert meter.take(50.0) == pytest.approx(0.1)
    assert meter.flows == []


CAPACITIES = st.sampled_from([1.0, 3.0, 10.0, inf])
PARCELS = st.tuples(
    st.floats(0, 100, width=16),
    st.lists(st.integers(0, 3), unique=True, max_size=3),
    st.floats(0, 20, width=16),
    st.integers(0, 2),
    st.sampled_from([0.5, 4.0, inf]),
    st.booleans(),
)


@given(st.lists(CAPACITIES, min_size=4, max_size=4), st.lists(PARCELS, max_size=8))
def test_bytes_are_conserved_and_no_link_carries_more_than_its_bandwidth(
    capacities: list[float], parcels: list[tuple[float, list[int], float, int, float, bool]]
) -> None:
    bench = Bench(chunk_bytes=7)
    links = [SimulatedLink(str(number), capacity) for number, capacity in enumerate(capacities)]
    carried = [0.0] * len(links)
    for number, (size, path, at_s, priority, most, is_stopped) in enumerate(sorted(parcels, key=lambda one: one[2])):
        bench.world.run_to(at_s)
        for link in links:
            rates = [flow.rate for flow in link.flows]
            assert sum(rates) <= link.bytes_per_s * (1 + 1e-9)
            assert link.carried_bytes <= link.bytes_per_s * max(at_s, 1e-9) * (1 + 1e-9) + 1e-3
        flow = bench.start(
            str(number), size, *(links[one] for one in path), at_s=at_s, priority=priority, most=most
        )  # fmt: skip
        left = bench.flows.stop(at_s, flow) if is_stopped and not flow.is_over else 0.0
        for one in path:
            carried[one] += size - left
    bench.run()
    for link, expected in zip(links, carried, strict=True):
        assert link.carried_bytes == pytest.approx(expected, abs=1e-2)
        assert link.flows == []


@given(st.lists(st.tuples(st.floats(1, 100, width=16), st.integers(0, 2)), min_size=1, max_size=6))
def test_no_link_rests_while_bytes_wait_for_it(parcels: list[tuple[float, int]]) -> None:
    bench, link = Bench(), SimulatedLink("l", 10.0)
    total = 0.0
    for number, (size, priority) in enumerate(parcels):
        bench.start(str(number), size, link, priority=priority)
        total += size
    assert max(bench.run().values()) == pytest.approx(total / 10.0, abs=1e-4)
