"""Instances that differ, as flags name them, and what a cluster makes of them."""

import pytest

from dunlin.messages.types import GroupRole
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.cluster.simulated import SimulatedCluster
from simulator.study.engine_groups import EngineGroup, named, parse_engine_group, prefill_instances
from simulator.study.run_case import SimError, cluster_of, overhead_text, run_case
from simulator.study.sweep import Case

SPLIT = (EngineGroup(1, "a100", 2, "prefill"), EngineGroup(2, "h200", 1, "decode"))


def case(*engines: EngineGroup, preset: str = "chunked") -> Case:
    return Case(preset, 0, "a100", "llama-3-8b", engines=engines)


def test_what_is_not_said_is_as_for_all() -> None:
    assert parse_engine_group("3", "a100", 2) == EngineGroup(3, "a100", 2)
    assert parse_engine_group("1:device=h200,tp=4,role=decode", "a100", 2) == EngineGroup(1, "h200", 4, "decode")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "COUNT and N are whole numbers"),
        ("0", "COUNT and N are whole numbers"),
        ("2:tp=0", "COUNT and N are whole numbers"),
        ("2:gpus=4", "'gpus' is not known"),
        ("2:role=both", "no role 'both'"),
    ],
)
def test_a_mistake_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_engine_group(text, "a100", 1)


def test_instances_are_numbered_through() -> None:
    assert [(name, group.tp) for name, group in named(SPLIT)] == [
        ("instance-0", 2), ("instance-1", 1), ("instance-2", 1),
    ]  # fmt: skip
    assert prefill_instances(SPLIT) == "instance-0"
    assert prefill_instances((EngineGroup(2, "a100"),)) == ""
    with pytest.raises(ValueError, match="give every group one"):
        prefill_instances((SPLIT[0], EngineGroup(1, "a100")))


def test_each_instance_has_the_memory_and_the_times_of_its_own_device() -> None:
    spec = cluster_of(case(EngineGroup(1, "a100"), EngineGroup(1, "h200")))
    small, large = (spec.engines[f"instance-{number}"] for number in range(2))
    assert large.ready.slots > small.ready.slots
    cluster = SimulatedCluster(spec)
    known = [core.steps.forecast.times for core in cluster.instances.values()]
    assert known[0] != known[1]


def test_the_roles_are_those_that_were_given() -> None:
    cluster = SimulatedCluster(cluster_of(case(*SPLIT, preset="distserve")))
    cluster.world.run_to(5.0)
    orders = {name: core.group_order for name, core in cluster.instances.items()}
    assert {name: order.part for name, order in orders.items() if order is not None} == {
        "instance-0": GroupRole.PREFILL, "instance-1": GroupRole.DECODE, "instance-2": GroupRole.DECODE,
    }  # fmt: skip


def test_a_split_over_unlike_instances_serves_and_says_what_was_added() -> None:
    arrivals = read_workload("poisson:rate=4,duration=3,lengths=fixed(800,20)")
    outcome = run_case(case(*SPLIT, preset="distserve"), arrivals)
    assert [record.outcome for record in outcome.records] == ["ok"] * len(arrivals)
    assert outcome.overhead == overhead_text(case(*SPLIT, preset="distserve"))
    assert "1 instance of 2 a100 for prefill: 12.83 ms a step" in outcome.overhead
    assert "; 2 instances on h200 for decode: 11.00 ms a step" in outcome.overhead
    assert "NVLink 456.5" in outcome.links.split("; ")[0]
    assert "NVLink 342" in outcome.links.split("; ")[1]


def test_only_a_preset_that_splits_has_roles() -> None:
    with pytest.raises(SimError, match="preset chunked splits no work"):
        cluster_of(case(*SPLIT))
