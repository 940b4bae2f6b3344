"""The processes of three nodes, as command lines."""

import os
from pathlib import Path

import pytest

from benchmarks.faults.chaos.cluster import ROLES_OF_NODES, STANDBY, service_specs
from benchmarks.faults.chaos.rounds import NODES
from benchmarks.harness.node_network import NodeNetwork
from cli.launch.process_specs import ProcessSpec

ETCD = ("a:1", "b:1", "c:1")


def specs(per_node: int = 1) -> dict[str, ProcessSpec]:
    network = NodeNetwork(NODES)
    return {one.name: one for one in service_specs(network, Path("/data"), ETCD, ["a.b=1"], [0.0, 7.5], per_node)}


@pytest.mark.parametrize("per_node", [1, 3])
def test_each_node_has_its_services_inside_its_namespace_with_its_own_disk(per_node: int) -> None:
    network, found = NodeNetwork(NODES), specs(per_node)
    assert len(ROLES_OF_NODES) == NODES
    assert len(found) == sum(map(len, ROLES_OF_NODES)) + NODES * per_node
    assert [one.role for one in found.values()].count("instance") == NODES * per_node
    for name, spec in found.items():
        node = int(name[-1])
        words = list(spec.command)
        assert words[:4] == ["ip", "netns", "exec", network.names[node]]
        assert words[words.index("--listen") + 1].startswith(f"{network.hosts[node]}:")
        assert words[words.index("--data-dir") + 1] == f"/data/{network.names[node]}"
        assert words[words.index("--etcd") + 1] == "a:1,b:1,c:1"
        assert words[words.index("--node") + 1] == network.names[node]
        assert "--set=a.b=1" in words


def test_clock_offsets_go_round_and_each_process_is_tied_to_this_one() -> None:
    for number, spec in enumerate(specs().values()):
        words = list(spec.command)
        assert words[words.index("--monotonic") + 1] == words[words.index("--boottime") + 1] == ("0", "7")[number % 2]
        assert words[words.index("--parent-pid") + 1] == str(os.getpid())


def test_one_instance_alone_has_an_engine_that_stands_by() -> None:
    with_standby = [name for name, spec in specs(2).items() if "--no-standby" not in spec.command]
    assert [name for name in with_standby if name.startswith("instance")] == [STANDBY]
