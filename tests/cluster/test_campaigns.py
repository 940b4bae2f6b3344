"""Each campaign, small: what it proves is checked, how long things took is not."""

import asyncio
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.faults import disconnects, etcd_outage, failover, fault_matrix, restarts, slow_step
from benchmarks.harness.fleet_status import wait_until
from benchmarks.harness.layer_orders import RandomLayerOrders, missing_layers
from benchmarks.harness.report import BenchmarkResult
from benchmarks.harness.session import CampaignSession
from benchmarks.kv import preemption
from cli.launch.cluster_process import ClusterProcess

pytestmark = pytest.mark.cluster


def held(outcome: BenchmarkResult) -> BenchmarkResult:
    assert outcome.failures == []
    return outcome


def test_kills_and_a_stop_in_mid_sequence_fail_no_request(cluster: ClusterProcess) -> None:
    plan = failover.FailoverPlan(kills=2, stops=1, distinct_prompts=4)
    figures = held(asyncio.run(failover.run(plan, cluster))).figures
    assert figures["faults"] == 3
    assert figures["requests finished"] > 3


def test_layers_are_ordered_away_and_back(cluster: ClusterProcess) -> None:
    async def order() -> None:
        async with CampaignSession(cluster) as session, RandomLayerOrders(session.status, 0.05) as orders:
            deadline_s = time.monotonic() + 300
            while orders.restored < 2 and time.monotonic() < deadline_s:
                await asyncio.sleep(0.05)
            assert (min(orders.dropped, orders.restored) >= 2, orders.failed) == (True, [])
        async with CampaignSession(cluster) as session:
            await wait_until(session.status, lambda status: not missing_layers(status), "all layers", 60)

    asyncio.run(order())


def test_disconnects_lose_no_slot(cluster: ClusterProcess) -> None:
    figures = held(asyncio.run(disconnects.run(disconnects.DisconnectPlan(count=100), cluster))).figures
    assert (figures["left through grpc"], figures["left through http"]) == (50, 50)


def test_under_pressure_the_tier_brings_sequences_back_and_a_flipped_byte_there_does_no_harm() -> None:
    plan = preemption.PreemptionPlan(rounds=1)
    with ClusterProcess(*preemption.cluster_flags(plan)) as own:
        for outcome in asyncio.run(preemption.run(plan, own, (False, True))):
            held(outcome)


def test_a_killed_process_comes_back_and_its_time_is_told() -> None:
    figures = held(restarts.measure(1, settle_s=0.0)).figures
    assert {"engine", "instance", "manager"} == {name.split()[0] for name in figures if "killed" in name}
    assert all(value > 0 for value in figures.values())


def test_etcd_away_fails_no_request() -> None:
    """All of it; one of three members: `benchmarks.faults.etcd_outage --members 3`, and tests/membership."""
    plan = etcd_outage.EtcdOutagePlan(away_s=7, calm_s=3, instances=2, pause_s=0.3)
    with tempfile.TemporaryDirectory() as folder:
        etcd = etcd_outage.make_etcd(plan, Path(folder))
        etcd.start()
        try:
            with ClusterProcess("--instances", "2", "--deterministic", "--etcd", etcd.endpoint) as own:
                figures = held(asyncio.run(etcd_outage.run(plan, own, etcd))).figures
        finally:
            etcd.kill()
    assert figures["requests finished while etcd was stopped"] > 0
    assert figures["requests finished while etcd was killed"] > 0


def test_a_long_step_is_no_hang(tmp_path: Path) -> None:
    from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint

    plan = slow_step.SlowStepPlan(layers=24)
    write_random_checkpoint(tmp_path / "model", "llama", CheckpointShape(layers=plan.layers))
    with ClusterProcess(*slow_step.cluster_flags(str(tmp_path / "model"))) as own:
        held(asyncio.run(slow_step.run(plan, own)))


def test_faults_of_any_role_in_any_phase_are_only_a_pause() -> None:
    cells = [("dispatcher", "decode", "kill"), ("kvstore", "migration", "kill"), ("leader", "drain", "kill")]
    plan = fault_matrix.FaultMatrixPlan(width=3, decode_tokens=320)  # they run still when a drain is ordered
    with ClusterProcess(*plan.flags()) as own:
        figures = held(asyncio.run(fault_matrix.run(plan, own, cells))).figures
    assert figures["faults done"] == len(cells)
    assert figures["streams that a fault met"] > 0
    assert figures["faults while a sequence moved"] > 0
