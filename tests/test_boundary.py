"""The boundary holds: whole requests through the real cores alone, faults at exact times, no server imported."""

import subprocess
import sys

import pytest

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import Preempted
from dunlin.messages.door import RejectionCode
from dunlin.messages.engine import EngineStarted
from dunlin.messages.fleet import ExplainQuery, Explanation
from dunlin.messages.pool import RegionRefused, RegionReserved
from dunlin.messages.types import FinishReason, HostRegion
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.explain import explain
from services.instance.sequence.states import SequenceState
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

TOOL = Address("client", "tool")


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + position * 7) % 1000 for position in range(length)]


def ready_cluster(**settings: object) -> ScriptedCluster:
    cluster = ScriptedCluster(**settings)
    cluster.run_until_ready()
    return cluster


def submit_many(cluster: ScriptedCluster, count: int, length: int = 12, max_tokens: int = 20) -> list[RecordingClient]:
    return [cluster.submit(prompt(length + salt % 5, salt), max_tokens, seed=salt) for salt in range(count)]


def run_until_tokens(cluster: ScriptedCluster, client: RecordingClient, count: int) -> None:
    assert cluster.world.run(lambda: len(client.tokens) >= count)


def test_no_server_is_needed() -> None:
    code = (
        "import sys, simulator.cluster.simulated\n"
        "bad = {'grpc', 'google.protobuf', 'aiohttp', 'torch', 'uvloop', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_request_is_served_at_exact_times() -> None:
    cluster = ready_cluster(instances=1)
    asked_s = cluster.world.now_s
    client = cluster.submit(prompt(10), max_tokens=3)
    cluster.run_until_done()
    assert client.is_exact
    # door 1 ms, Place 1 ms, Open and Step 1 ms, a step of 10 ms, StepDone 1 ms, Tokens 1 ms, Delta 1 ms
    assert client.times_s == pytest.approx([asked_s + 0.016, asked_s + 0.026, asked_s + 0.036])


def test_many_requests_share_steps_and_every_slot_comes_back() -> None:
    cluster = ready_cluster(instances=2)
    clients = submit_many(cluster, 12)
    cluster.world.on_delivered = lambda event: cluster.check_conservation()
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert all(core.steps.totals.multi_row > core.steps.totals.done / 2 for core in cluster.instances.values())
    assert cluster.world.run(cluster.all_free)


def test_a_killed_instance_is_only_a_pause() -> None:
    cluster = ready_cluster(instances=2)
    clients = submit_many(cluster, 6)
    run_until_tokens(cluster, clients[0], 4)
    victim = cluster.instance_running(clients[0])
    cluster.kill_instance(victim)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert cluster.dispatcher.report().replaced_total >= 1
    assert cluster.world.run(cluster.all_free)


def test_a_restarted_instance_serves_again() -> None:
    cluster = ready_cluster(instances=1)
    client = cluster.submit(prompt(10), max_tokens=30)
    run_until_tokens(cluster, client, 5)
    cluster.kill_instance("instance-0")
    cluster.world.run(for_s=1.0)
    cluster.start_instance("instance-0")
    cluster.run_until_done()
    assert client.is_exact


def test_a_crashed_engines_requests_go_on_in_the_next_one() -> None:
    cluster = ready_cluster(instances=2)
    clients = submit_many(cluster, 6)
    run_until_tokens(cluster, clients[0], 4)
    cluster.engine_supervisor(cluster.instance_running(clients[0])).crash()
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert sum(core.report().engine_restarts_total for core in cluster.instances.values()) == 1


def test_a_stuck_engine_is_ended_after_three_seconds_without_a_safepoint() -> None:
    cluster = ready_cluster(instances=2, engine={"restart_s": 0.2})
    client = cluster.submit(prompt(10), max_tokens=30)
    run_until_tokens(cluster, client, 4)
    holder = cluster.instance_running(client)
    cluster.engine_supervisor(holder).engine.is_stuck = True
    stuck_s = cluster.world.now_s
    assert cluster.world.run(lambda: client.address.name != "" and len(client.tokens) > 6)
    assert 3.0 <= cluster.world.now_s - stuck_s < 3.5
    cluster.run_until_done()
    assert client.is_exact


def test_an_engine_that_hangs_while_it_loads_is_ended_after_a_minute() -> None:
    cluster = ScriptedCluster(instances=1, engine={"load_s": 1e9})
    core, seat = cluster.instances["instance-0"], cluster.engine_supervisor("instance-0")
    cluster.world.post(core.engine, core.address, EngineStarted(pid=7))
    cluster.world.run(for_s=59.0)
    assert not seat.ended
    cluster.world.run(for_s=3.0)
    assert len(seat.ended) == 1


def test_an_answer_of_a_kvstore_that_is_no_more_names_no_room() -> None:
    settings = {
        "scheduler.allocate_ahead_tokens": 8,
        "kv_cache.prefix_caching": False,
    }  # a prefix would be found instead of a region restored
    cluster = ready_cluster(instances=1, engine={"slots": 160}, instance=settings)
    clients = submit_many(cluster, 8, length=20, max_tokens=60)
    core = cluster.instances["instance-0"]
    older = Address("kvstore", "kvstore-0", 1)
    for ticket in range(1, 20):
        cluster.world.post(older, core.address, RegionReserved(ticket, HostRegion(9, 9, 0, 1 << 16)), delay_s=0.1)
        cluster.world.post(older, core.address, RegionRefused(ticket), delay_s=0.2)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert core.report().stale_total == 38
    assert core.report().recomputed_tokens_total == 0


def test_a_long_step_that_passes_safepoints_is_no_hang() -> None:
    cluster = ready_cluster(instances=2, engine={"step_s": 6.0})
    seat_safepoints = cluster.engine_supervisor("instance-0").engine, cluster.engine_supervisor("instance-1").engine

    def tick(_: object) -> None:
        for engine in seat_safepoints:
            engine.safepoints += 1

    cluster.world.on_delivered = tick
    client = cluster.submit(prompt(10), max_tokens=2)
    cluster.run_until_done()
    assert client.is_exact
    assert sum(core.report().engine_restarts_total for core in cluster.instances.values()) == 0
    assert cluster.dispatcher.report().replaced_total == 0


def test_a_stopped_instance_is_suspected_its_work_goes_on_elsewhere_and_the_woken_one_is_fenced() -> None:
    cluster = ready_cluster(instances=2)
    client = cluster.submit(prompt(10), max_tokens=40)
    run_until_tokens(cluster, client, 4)
    stopped = cluster.instances[cluster.instance_running(client)]
    cluster.world.pause(stopped.address)
    stopped_s = cluster.world.now_s
    had = len(client.tokens)
    assert cluster.world.run(lambda: len(client.tokens) > had + 3)
    assert cluster.world.now_s - stopped_s < 3.5
    cluster.world.resume(stopped.address)
    cluster.run_until_done()
    assert client.is_exact
    assert cluster.world.run(cluster.all_free)
    assert len(cluster.dispatcher.fleet.serving) == 2


def test_a_cancelled_request_frees_its_slots_when_the_steps_already_sent_have_answered() -> None:
    cluster = ready_cluster(instances=1)
    leaving, staying = cluster.submit(prompt(10), 100), cluster.submit(prompt(11), 100)
    run_until_tokens(cluster, leaving, 3)
    core = cluster.instances["instance-0"]
    steps = core.steps.totals.done
    cluster.disconnect(leaving)
    number = cluster.request_number(leaving)
    gone = lambda: all(sequence.place.request != number for sequence in core.sequences.by_arrival())  # noqa: E731
    assert cluster.world.run(gone)
    assert core.steps.totals.done - steps <= 3  # one was answering while the word travelled, two were sent
    assert cluster.world.run(lambda: staying.is_exact)
    assert cluster.world.run(cluster.all_free)


def test_a_full_queue_refuses_at_the_door() -> None:
    cluster = ready_cluster(
        instances=1,
        engine={"slots": 64},
        instance={"scheduler.max_waiting": 2, "scheduler.max_running": 1},
        dispatcher={"admission.max_queued": 4, "placement.max_waiting_per_instance": 1},
    )
    clients = submit_many(cluster, 12, length=10)
    cluster.run_until_done()
    refused = [client for client in clients if client.rejected]
    served = [client for client in clients if not client.rejected]
    assert refused
    assert all(client.rejected and client.rejected.code is RejectionCode.FULL for client in refused)
    assert all(client.rejected and client.rejected.retry_after_s > 0 for client in refused)
    assert all(client.is_exact for client in served)
    assert len(served) >= 4


def test_a_deadline_ends_a_request() -> None:
    cluster = ready_cluster(instances=1)
    client = cluster.submit(prompt(10), max_tokens=200, timeout_s=0.5)
    cluster.run_until_done()
    assert client.finish is FinishReason.DEADLINE
    assert client.tokens == client.expected[: len(client.tokens)]
    assert cluster.world.run(cluster.all_free)


def test_under_memory_pressure_kv_goes_to_the_host_tier_and_back() -> None:
    settings = {"scheduler.allocate_ahead_tokens": 8, "kv_cache.prefix_caching": False}
    cluster = ready_cluster(instances=1, engine={"slots": 160}, instance=settings)
    clients = submit_many(cluster, 8, length=20, max_tokens=60)
    cluster.world.on_delivered = lambda event: cluster.check_conservation()
    cluster.run_until_done()
    report = cluster.instances["instance-0"].report()
    assert all(client.is_exact for client in clients)
    assert report.restored_regions_total > 0
    assert report.recomputed_tokens_total == 0
    assert cluster.world.run(lambda: cluster.kvstore.report().used_bytes == 0)


def test_the_youngest_is_preempted_also_while_a_younger_one_is_on_its_way_back() -> None:
    cluster = ready_cluster(
        instances=1, engine={"slots": 160, "move_s": 0.3}, instance={"scheduler.allocate_ahead_tokens": 8}
    )
    clients = submit_many(cluster, 8, length=20, max_tokens=60)
    core = cluster.instances["instance-0"]
    seen = len(cluster.world.sent)
    preempted = []

    def check(_: object) -> None:
        nonlocal seen
        for _, _, _, message in cluster.world.sent[seen:]:
            if isinstance(message, Preempted):
                victim = core.sequences.by_key((cluster.dispatcher.address, message.request))
                assert victim is not None
                preempted.append(victim.order)
                others = [
                    one
                    for one in core.sequences.by_arrival()
                    if one.state in (SequenceState.RUNNING, SequenceState.RESTORING)
                ]
                assert all(one.order < victim.order for one in others), f"{victim.name} of {core!r}"
        seen = len(cluster.world.sent)

    cluster.world.on_delivered = check
    cluster.run_until_done()
    assert preempted
    assert all(client.is_exact for client in clients)


def test_one_that_comes_back_leaves_room_to_those_that_preempted_it() -> None:
    """The little one's slots are all that is free: if it took them again at once, nobody would ever get on."""
    tight = {"scheduler.allocate_ahead_tokens": 1, "scheduler.budget_tokens": 4}
    cluster = ready_cluster(instances=1, engine={"slots": 64, "move_s": 0.2}, instance=tight)
    for salt, (length, max_tokens) in enumerate([(1, 8), (9, 17), (23, 33), (2, 8)]):
        cluster.submit(prompt(length, salt), max_tokens, seed=salt)
    cluster.run_until_done(for_s=20.0)
    assert all(client.is_exact for client in cluster.clients)
    assert cluster.instances["instance-0"].report().preemptions_total <= 4


def test_a_flipped_byte_in_the_tier_means_recompute_and_the_same_text() -> None:
    cluster = ready_cluster(instances=1, engine={"slots": 160}, instance={"scheduler.allocate_ahead_tokens": 8})
    clients = submit_many(cluster, 8, length=20, max_tokens=60)
    assert cluster.world.run(lambda: bool(cluster.tier.contents))
    cluster.tier.corrupt(next(iter(cluster.tier.contents)))
    cluster.run_until_done()
    report = cluster.instances["instance-0"].report()
    assert all(client.is_exact for client in clients)
    assert report.corrupt_regions_total == 1
    assert report.recomputed_tokens_total > 0


def test_without_room_in_the_tier_tokens_are_recomputed() -> None:
    cluster = ready_cluster(
        instances=1, tier_bytes=4096, engine={"slots": 160}, instance={"scheduler.allocate_ahead_tokens": 8}
    )
    clients = submit_many(cluster, 8, length=20, max_tokens=60)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert cluster.instances["instance-0"].report().recomputed_tokens_total > 0


def test_a_lost_kvstore_costs_only_a_recompute() -> None:
    cluster = ready_cluster(instances=1, engine={"slots": 160}, instance={"scheduler.allocate_ahead_tokens": 8})
    clients = submit_many(cluster, 8, length=20, max_tokens=60)
    assert cluster.world.run(lambda: bool(cluster.tier.contents))
    cluster.world.kill(cluster.kvstore.address)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)


def failed_over_request() -> tuple[ScriptedCluster, RecordingClient]:
    cluster = ready_cluster(instances=2)
    client = cluster.submit(prompt(10), max_tokens=20)
    run_until_tokens(cluster, client, 4)
    cluster.kill_instance(cluster.instance_running(client))
    cluster.run_until_done()
    cluster.forward_reasons()
    return cluster, client


def records_about(cluster: ScriptedCluster, request: str) -> list[DecisionRecord]:
    answer = cluster.monitor.receive(cluster.world.now_s, TOOL, ExplainQuery(request))[0]
    assert isinstance(answer, Send)
    explanation = answer.message
    assert isinstance(explanation, Explanation)
    return [
        DecisionRecord(one.at_s, one.sender, one.to, cluster.codec.decode(one.kind, one.payload))
        for one in explanation.reasons
    ]


def test_explain_tells_of_a_failover_and_a_record_less_is_a_sentence_less() -> None:
    cluster, client = failed_over_request()
    records = records_about(cluster, client.request)
    told = explain(records, client.request)
    assert sum(type(record.message).__name__ == "Place" for record in records) == 2
    lost = cluster.dispatcher.address.name
    assert any(lost in line and "attempt 2" in line for line in told), told
    for missing in range(len(records)):
        fewer = explain(records[:missing] + records[missing + 1 :], client.request)
        assert untimed(fewer) == untimed(told[:missing] + told[missing + 1 :])


def untimed(lines: list[str]) -> list[str]:
    """Sentences alone: their times count from the first dispatch, which may be the one that is missing."""
    return [line.partition("  ")[2] for line in lines]


def test_hundreds_of_requests_at_once_stay_exact() -> None:
    """How fast the cores are at this is `python -m benchmarks.cores.core_events`'s to say."""
    cluster = ready_cluster(instances=3, engine={"slots": 4096, "audit": False}, instance={"scheduler.max_running": 64})
    cluster.world.keep_sent = False
    submit_many(cluster, 300, length=16, max_tokens=30)
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    assert cluster.world.run(cluster.all_free)
