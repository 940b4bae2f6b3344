"""Latencies by place."""

import pytest

from dunlin.effects import Address
from simulator.cluster.network import Latencies, NetworkSpec

I0, I1, ENGINE = Address("instance", "i0", 1), Address("instance", "i1", 2), Address("engine", "i0")
CLIENT = Address("client", "c")
SPEC = NetworkSpec(engine_s=0.0001, node_s=0.001, link_s=0.01)


@pytest.mark.parametrize(
    ("one", "other", "latency_s"),
    [(I0, ENGINE, 0.0001), (ENGINE, I0, 0.0001), (I0, I0, 0.001), (I0, I1, 0.01), (CLIENT, I0, 0.01)],
)
def test_a_stream_takes_what_its_ends_are_apart(one: Address, other: Address, latency_s: float) -> None:
    assert Latencies(SPEC, {I0: "a", I1: "b"})(one, other) == latency_s


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="node_s is -1"):
        NetworkSpec(node_s=-1)
