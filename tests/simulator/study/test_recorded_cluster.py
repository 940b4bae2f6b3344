"""The cluster of a record is built whole, or refused by the name of what is missing or cannot be modelled."""

from typing import Any

import pytest

from dunlin.workload.loadgen.run_record import RecordedRun
from dunlin.workload.traffic.trace import Arrival
from simulator.study import live_comparison
from simulator.study.live_comparison import resimulate
from simulator.study.recorded_cluster import RunError, recorded_cluster
from simulator.study.run import SimResult, SimSpec
from tests.simulator.study.recorded_facts import member, recorded_facts
from tests.simulator.study.test_live_comparison import TIMING


def test_slots_tier_nodes_processes_and_settings_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = recorded_facts(4, 2, 512, 1 << 20, **{"instance.scheduler.budget_tokens": 64, "cluster.preset": "llumnix"})
    specs: list[SimSpec] = []

    def simulate(spec: SimSpec) -> SimResult:
        specs.append(spec)
        return SimResult([], {}, 0.0, 0.0, 0, True)

    monkeypatch.setattr(live_comparison, "simulate", simulate)
    resimulate(RecordedRun(facts, [Arrival(0.0, 20, 5)], []), TIMING)
    cluster = specs[0].cluster
    assert (cluster.instances, cluster.nodes, cluster.dispatchers, cluster.managers) == (4, 2, 1, 1)
    assert (cluster.preset, cluster.tier_bytes) == ("llumnix", 1 << 20)
    assert (cluster.engine.ready.slots, cluster.engine.ready.max_positions) == (512, 2048)
    assert cluster.instance_config("node-0").scheduler.budget_tokens == 64
    assert cluster.kvstore_config("node-1").tier.capacity_bytes == 1 << 20


def test_fewer_slots_make_a_slower_run() -> None:
    arrivals = [Arrival(0.001 * index, 200, 100) for index in range(12)]
    ends = [
        max(record.end_s for record in resimulate(RecordedRun(recorded_facts(slots=slots), arrivals, []), TIMING))
        for slots in (4096, 640)
    ]
    assert ends[1] > 1.5 * ends[0]


def changed(**parts: Any) -> dict[str, Any]:
    return {**recorded_facts(2, 2), **parts}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (changed(info=None), "what model it was"),
        (changed(settings=None), "its settings"),
        (changed(before=None), "which processes it had"),
        (changed(before={"members": []}), "lists no instance"),
        (changed(settings={"instance.scheduler.no_such": 1}), "instance.scheduler.no_such"),
        (changed(settings={"cluster.preset": "nonsense"}), "nonsense"),
    ],
)
def test_what_a_record_lacks_is_named(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        recorded_cluster(facts)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (member("instance", "instance-2", "node-0", instance={"capacity_slots": 8}), "instance-2 8"),
        (member("instance", "instance-2", "node-0"), "instance-2 0"),
        (member("instance", "instance-2", "node-1", instance={"capacity_slots": 4096}), "instance-2 on node-1"),
        (member("kvstore", "kvstore-1b", "node-1", kvstore={"capacity_bytes": 1 << 28}), "kvstore-1b on node-1"),
        (member("kvstore", "kvstore-node-2", "node-2", kvstore={"capacity_bytes": 1 << 28}), "on node-2"),
    ],
)
def test_a_cluster_that_cannot_be_modelled_is_refused_by_name(more: dict[str, Any], said: str) -> None:
    facts = recorded_facts(2, 2)
    facts["before"]["members"].append(more)
    with pytest.raises(RunError, match=said):
        recorded_cluster(facts)
