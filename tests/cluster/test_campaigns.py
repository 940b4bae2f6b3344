"""Each campaign, small: what it proves is checked, how long things took is not."""

import asyncio
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.engine import throughput
from benchmarks.faults import disconnects, etcd_outage, failover, fault_matrix, slow_step
from benchmarks.harness.fleet_status import wait_until
from benchmarks.harness.layer_orders import RandomLayerOrders, missing_layers
from benchmarks.harness.report import BenchmarkResult
from benchmarks.harness.session import CampaignSession
from benchmarks.kv import preemption
from cli.launch.cluster_process import ClusterProcess
from dunlin.workload.traffic.arrival_processes import arrivals_until, gamma_arrivals

pytestmark = pytest.mark.cluster


def held(outcome: BenchmarkResult) -> BenchmarkResult:
    assert outcome.failures == []
    return outcome


def test_kills_and_a_stop_in_mid_sequence_fail_no_request(cluster: ClusterProcess) -> None:
    plan = failover.FailoverPlan(kills=3, stops=1, distinct_prompts=6)
    figures = held(asyncio.run(failover.run(plan, cluster))).figures
    assert figures["faults"] == 4
    assert figures["requests finished"] > 4


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


def test_a_bursty_trace_is_served_whole_and_in_batches(cluster: ClusterProcess, tmp_path: Path) -> None:
    rows = "".join(f"{at_s},96,48\n" for at_s in arrivals_until(gamma_arrivals(6, 2, seed=1), 30))
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    plan = throughput.ThroughputPlan(tmp_path / "trace.csv", duration_s=10, capacity_s=5, width=16, stream_tokens=96)
    figures = asyncio.run(throughput.run(plan, cluster)).figures
    assert (figures["errors"], figures["refused"]) == (0, 0)
    assert figures["completed"] == figures["requests"] > 0
    assert figures["replay: steps with prefill and decode"] > 0
    assert figures["16 streams: share of steps with 2 rows or more"] > 0.5


def test_under_pressure_the_tier_brings_sequences_back_and_a_flipped_byte_there_does_no_harm() -> None:
    plan = preemption.PreemptionPlan(rounds=1)
    with ClusterProcess(*preemption.cluster_flags(plan)) as own:
        for corrupt in (False, True):  # in this order: without it nothing is computed again
            held(asyncio.run(preemption.run(plan, own, corrupt)))


@pytest.mark.parametrize("members", [1, 3])
def test_etcd_away_fails_no_request(members: int) -> None:
    plan = etcd_outage.EtcdOutagePlan(away_s=7, calm_s=3, instances=2, pause_s=0.3, members=members)
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
    from dunlin.engine.decoder.random_checkpoint import CheckpointShape, write_random_checkpoint

    plan = slow_step.SlowStepPlan(layers=32)
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
