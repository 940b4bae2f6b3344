"""The paths of copies: which links they cross, and with whom they share them."""

import pytest

from dunlin.cost.links import EngineLinks, NodeLinks
from simulator.cluster.world import World
from simulator.links.ports import EnginePorts, Fabric, make_fabric

GPU = EngineLinks(
    pcie=25.0, nvlink=200.0, nic=10.0, look=1000.0, switch=25.0, gpus=1, gpus_per_switch=2, host_busy_share=0.0,
    send_byte_s=0.0, receive_byte_s=0.0, is_duplex=True,
)  # fmt: skip


class Cluster:
    """Engines by name, each on a node, and when their copies of 100 bytes were through."""

    def __init__(self, memory: float = 0.0, **engines: tuple[str, EngineLinks]) -> None:
        self.world = World(0.0)
        self.fabric: Fabric = make_fabric(self.world.call_at, NodeLinks(memory, 50.0))
        self.through: dict[str, float] = {}
        self.ports: dict[str, EnginePorts] = {
            name: self.fabric.ports(name, node, links, lambda due: self.through.update({due: self.world.now_s}))
            for name, (node, links) in engines.items()
        }

    def host(self, name: str, due: str, is_out: bool = True) -> None:
        self.ports[name].copy_to_host(0.0, is_out, 100, 100, 0.0, 1, due)

    def peer(self, sender: str, receiver: str, due: str) -> None:
        self.ports[sender].copy_to_peer(0.0, self.ports[receiver], 100, 1, due)

    def run(self) -> dict[str, float]:
        self.world.run_to(1000.0)
        return {due: round(at_s, 6) for due, at_s in self.through.items()}


def test_two_gpus_of_a_switch_share_its_way_to_the_host_and_a_third_does_not() -> None:
    cluster = Cluster(a=("n", GPU), b=("n", GPU), c=("n", GPU))
    for name in ("a", "b", "c"):
        cluster.host(name, name)
    assert cluster.run() == {"a": 8.0, "b": 8.0, "c": 4.0}


def test_in_and_out_do_not_share_pcie() -> None:
    cluster = Cluster(a=("n", GPU))
    cluster.host("a", "out")
    cluster.host("a", "in", is_out=False)
    assert cluster.run() == {"out": 4.0, "in": 4.0}


def test_a_nodes_engines_share_its_memory_in_both_directions() -> None:
    cluster = Cluster(20.0, a=("n", GPU), c=("n", GPU), d=("n", GPU))
    cluster.host("a", "out")
    cluster.host("d", "in", is_out=False)
    assert cluster.run() == {"out": 10.0, "in": 10.0}


def test_an_engine_of_four_gpus_has_two_switches_alone() -> None:
    four = EngineLinks(pcie=100.0, switch=25.0, gpus=4, gpus_per_switch=2, is_duplex=True)
    cluster = Cluster(a=("n", four), b=("n", GPU))
    cluster.host("a", "a")
    cluster.host("b", "b")
    assert cluster.run() == {"a": 2.0, "b": 4.0}


def test_engines_of_a_node_copy_over_nvlink_and_others_over_the_network() -> None:
    cluster = Cluster(a=("n", GPU), b=("n", GPU), c=("m", GPU))
    cluster.peer("a", "b", "near")
    cluster.peer("a", "c", "far")
    cluster.peer("c", "a", "back")
    assert cluster.run() == {"near": 0.5, "far": 10.0, "back": 10.0}


def test_two_senders_share_the_receivers_link() -> None:
    cluster = Cluster(a=("n", GPU), b=("m", GPU), c=("o", GPU))
    cluster.peer("a", "c", "one")
    cluster.peer("b", "c", "other")
    assert cluster.run() == {"one": 20.0, "other": 20.0}


def test_an_engine_that_is_replaced_keeps_its_links() -> None:
    cluster = Cluster(a=("n", GPU), b=("n", GPU))
    cluster.fabric.ports("a", "n", GPU, lambda due: None)
    cluster.ports["d"] = cluster.fabric.ports("d", "n", GPU, lambda due: None)
    paths = {name: cluster.fabric.topology.to_host(name) for name in ("a", "b", "d")}
    assert paths["a"][1] is paths["b"][1]
    assert paths["d"][1] is not paths["b"][1]


def test_kvstores_of_two_nodes_share_the_nodes_network() -> None:
    topology = make_fabric(World(0.0).call_at, NodeLinks(7.0, 50.0)).topology
    out = topology.between_hosts("n", "m")
    assert [link.bytes_per_s for link in out] == [7.0, 50.0, 50.0, 7.0]
    assert {link.name for link in out} == {"memory n", "nic n out", "nic m in", "memory m"}
    assert topology.between_hosts("n", "o")[1] is out[1]
    assert topology.between_hosts("m", "n")[1] is not out[2]
    assert [link.name for link in topology.between_hosts("n", "n")] == ["memory n"]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="memory is -1"):
        NodeLinks(memory=-1)
    with pytest.raises(ValueError, match="nic of an engine's links is -1"):
        EngineLinks(nic=-1)
    with pytest.raises(ValueError, match="gpus of an engine's links is 0"):
        EngineLinks(gpus=0)
