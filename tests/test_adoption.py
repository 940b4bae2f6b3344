"""Several dispatchers over the same instances: killed, paused and woken at exact times, with clients that move on."""

from collections.abc import Callable

import pytest

from dunlin.effects import sends
from dunlin.messages.dispatch import Adopted, AdoptedElsewhere, Place, Refused
from dunlin.messages.fleet import ExplainQuery, Explanation
from dunlin.messages.types import FinishReason
from services.dispatcher.requests.request import RequestState
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

FIRST, SECOND, THIRD = "dispatcher-0", "dispatcher-1", "dispatcher-2"


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + position * 7) % 1000 for position in range(length)]


def ready_cluster(**settings: object) -> ScriptedCluster:
    cluster = ScriptedCluster(**{"dispatchers": 2, **settings})
    cluster.run_until_ready()
    cluster.world.on_delivered = lambda event: cluster.check_conservation()
    return cluster


def sent(cluster: ScriptedCluster, kind: type) -> list[object]:
    return [message for _, _, _, message in cluster.world.sent if isinstance(message, kind)]


def move_all(cluster: ScriptedCluster, to: str) -> None:
    for client in cluster.clients:
        if not client.finish and client.dispatcher != to:
            cluster.reconnect(client, to)


def retained(cluster: ScriptedCluster) -> int:
    """Answers that ended at instances."""
    return sum(len(core._engine_client._finished_answers) for core in cluster.instances.values())


PHASES: dict[str, Callable[[ScriptedCluster, RecordingClient], bool]] = {
    "admitted": lambda cluster, client: bool(client.request),
    "prefill": lambda cluster, client: cluster.instances["instance-0"].steps.outstanding > 0,
    "decode": lambda cluster, client: len(client.tokens) >= 5,
    "ended there, not delivered": lambda cluster, client: retained(cluster) > 0,
    "delivered but for the end": lambda cluster, client: len(client.tokens) == 19,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("pause_s", [0.0, 0.004, 0.5, 29.0])
def test_a_killed_dispatcher_is_only_a_pause(phase: str, pause_s: float) -> None:
    cluster = ready_cluster(instances=2)
    clients = [cluster.submit(prompt(40 + salt, salt), seed=salt) for salt in range(6)]
    assert cluster.world.run(lambda: PHASES[phase](cluster, clients[0]))
    assert not clients[0].finish
    cluster.kill_dispatcher(FIRST)
    cluster.world.run(for_s=pause_s)
    names = [client.request for client in clients]
    move_all(cluster, SECOND)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert [
        client.request for client, name in zip(clients, names, strict=True) if name not in ("", client.request)
    ] == []
    assert cluster.world.run(cluster.all_free)


def test_what_runs_is_adopted_and_nothing_is_computed_twice() -> None:
    cluster = ready_cluster(instances=2)
    clients = [cluster.submit(prompt(40, salt), 30, seed=salt) for salt in range(6)]
    assert cluster.world.run(lambda: all(len(client.tokens) >= 3 for client in clients))
    cluster.kill_dispatcher(FIRST)
    cluster.world.run(for_s=0.1)
    move_all(cluster, SECOND)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert (len(sent(cluster, Adopted)), len(sent(cluster, Place))) == (6, 6)
    core = cluster.dispatchers[SECOND]
    assert core.report().finished_total == 6
    computed = sum(core.steps.totals.prefill_tokens for core in cluster.instances.values())
    assert computed == 6 * 40


def test_a_paused_dispatcher_that_wakes_changes_nothing() -> None:
    cluster = ready_cluster(instances=2)
    clients = [cluster.submit(prompt(40, salt), 60, seed=salt) for salt in range(6)]
    assert cluster.world.run(lambda: len(clients[0].tokens) >= 3)
    old = cluster.dispatchers[FIRST]
    cluster.world.pause(old.address)
    cluster.world.run(for_s=0.2)
    move_all(cluster, SECOND)
    cluster.world.run(for_s=0.1)
    assert len(sent(cluster, AdoptedElsewhere)) == 6
    cluster.world.resume(old.address)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert len(old.journal) == 0
    assert len(sent(cluster, Place)) == 6
    assert cluster.world.run(cluster.all_free)


def test_a_paused_dispatcher_that_wakes_to_a_dead_instance_disturbs_no_request() -> None:
    cluster = ready_cluster(instances=2)
    clients = [cluster.submit(prompt(40, salt), 60, seed=salt) for salt in range(6)]
    assert cluster.world.run(lambda: len(clients[0].tokens) >= 3)
    old = cluster.dispatchers[FIRST]
    cluster.world.pause(old.address)
    move_all(cluster, SECOND)
    cluster.world.run(for_s=0.05)
    cluster.kill_instance("instance-0")
    cluster.world.run(for_s=0.05)
    cluster.world.resume(old.address)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert cluster.world.run(cluster.all_free)
    assert len(old.journal) == 0


def test_one_dispatcher_after_the_other() -> None:
    cluster = ready_cluster(instances=2, dispatchers=3)
    clients = [cluster.submit(prompt(30, salt), 60, seed=salt) for salt in range(4)]
    for victim, heir in ((FIRST, SECOND), (SECOND, THIRD)):
        seen = len(clients[0].tokens)
        assert cluster.world.run(lambda seen=seen: len(clients[0].tokens) >= seen + 5)  # type: ignore[misc]
        cluster.kill_dispatcher(victim)
        move_all(cluster, heir)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert len(sent(cluster, Place)) == 4


def test_dispatcher_and_instance_killed_together_cost_a_recomputation() -> None:
    cluster = ready_cluster(instances=2)
    clients = [cluster.submit(prompt(30, salt), 60, seed=salt) for salt in range(4)]
    assert cluster.world.run(lambda: len(clients[0].tokens) >= 5)
    cluster.kill_dispatcher(FIRST)
    cluster.kill_instance("instance-0")
    move_all(cluster, SECOND)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert 0 < len(sent(cluster, Adopted)) < 4


def test_after_the_grace_it_is_rebuilt_from_the_clients_own_tokens() -> None:
    cluster = ready_cluster(instances=1, instance={"retention.orphan_grace_s": 0.05})
    client = cluster.submit(prompt(30), 60)
    assert cluster.world.run(lambda: len(client.tokens) >= 5)
    cluster.kill_dispatcher(FIRST)
    cluster.world.run(for_s=0.5)
    assert cluster.all_free()
    had = len(client.tokens)
    cluster.reconnect(client, SECOND)
    cluster.run_until_done()
    assert client.is_exact
    again = sent(cluster, Place)[-1]
    assert isinstance(again, Place)
    assert (len(again.tokens), again.prompt_tokens, again.key, again.attempt) == (30 + had, 30, client.request, 2)


def test_a_dispatcher_that_just_started_asks_before_it_places() -> None:
    """One process under a supervisor: its clients are back before its streams to the instances are."""
    cluster = ready_cluster(instances=2, dispatchers=1)
    clients = [cluster.submit(prompt(30, salt), 60, seed=salt) for salt in range(4)]
    assert cluster.world.run(lambda: len(clients[0].tokens) >= 5)
    cluster.kill_dispatcher(FIRST)
    cluster.start_dispatcher(FIRST)
    for client in clients:
        cluster.reconnect(client, FIRST)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)
    assert (len(sent(cluster, Adopted)), len(sent(cluster, Place))) == (4, 4)


def test_a_stuck_instance_is_not_waited_for_longer_than_its_word_is_worth() -> None:
    cluster = ready_cluster(instances=2)
    client = cluster.submit(prompt(30), 60)
    assert cluster.world.run(lambda: len(client.tokens) >= 5)
    holder = cluster.instances[cluster.instance_running(client)]
    cluster.world.pause(holder.address)
    cluster.kill_dispatcher(FIRST)
    cluster.reconnect(client, SECOND)
    moved_s = cluster.world.now_s
    request = None
    assert cluster.world.run(lambda: cluster.dispatchers[SECOND].journal.by_key(client.request) is not None)
    request = cluster.dispatchers[SECOND].journal.by_key(client.request)
    assert request is not None
    assert request.state is RequestState.ADOPTING
    assert cluster.world.run(lambda: request.state is not RequestState.ADOPTING)
    assert cluster.world.now_s - moved_s == pytest.approx(2.001)
    cluster.world.run(for_s=2.0)
    cluster.world.resume(holder.address)  # and now it says that it held it: too late
    cluster.run_until_done()
    assert client.is_exact
    assert cluster.world.run(cluster.all_free)


def test_dispatchers_that_promise_the_same_slots_are_refused_and_place_again() -> None:
    cluster = ready_cluster(
        instances=2,
        dispatchers=3,
        engine={"slots": 96},
        instance={"scheduler.max_waiting": 2, "scheduler.max_running": 3},
    )
    for salt in range(36):
        cluster.submit(prompt(20 + salt % 7, salt), 12, seed=salt, at=f"dispatcher-{salt % 3}")
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    assert len(sent(cluster, Refused)) > 0
    assert cluster.world.run(cluster.all_free)


def test_two_dispatchers_share_what_the_third_leaves() -> None:
    cluster = ready_cluster(instances=2, dispatchers=3, engine={"slots": 256})
    for salt in range(18):
        cluster.submit(prompt(20, salt), 30, seed=salt, at=f"dispatcher-{salt % 3}")
    assert cluster.world.run(lambda: len(cluster.clients[0].tokens) >= 3)
    cluster.kill_dispatcher(FIRST)
    for index, client in enumerate(cluster.clients):
        if client.dispatcher == FIRST:
            cluster.reconnect(client, SECOND if index % 2 else THIRD)
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    assert cluster.world.run(cluster.all_free)


def test_two_dispatchers_whose_clients_read_the_same_request_have_it_in_turn() -> None:
    cluster = ready_cluster(instances=1)
    named = {"idempotency": "k/0", "digest": b"d"}
    first = cluster.submit(prompt(30), 220, **named)  # type: ignore[arg-type]
    assert cluster.world.run(lambda: len(first.tokens) >= 5)
    second = cluster.submit(prompt(30), 220, at=SECOND, **named)  # type: ignore[arg-type]
    cluster.run_until_done()
    assert first.is_exact
    assert second.is_exact
    assert (first.request, len(sent(cluster, Place))) == (second.request, 1)
    assert 2 <= len(sent(cluster, AdoptedElsewhere)) <= 4
    assert cluster.world.run(cluster.all_free)


def test_explain_finds_an_adopted_request_under_its_first_name() -> None:
    cluster = ready_cluster(instances=1)
    client = cluster.submit(prompt(30), 40)
    assert cluster.world.run(lambda: len(client.tokens) >= 5)
    cluster.kill_dispatcher(FIRST)
    cluster.reconnect(client, SECOND)
    cluster.run_until_done()
    core = cluster.dispatchers[SECOND]
    cluster.forward_reasons()
    effects = cluster.monitor.receive(cluster.world.now_s, core.address, ExplainQuery(client.request))
    (answer,) = [send.message for send in sends(effects) if isinstance(send.message, Explanation)]
    assert [reason.kind for reason in answer.reasons if reason.kind in ("Place", "Accepted", "Adopted")] == [
        "Place",
        "Accepted",
        "Adopted",
    ]
    assert any(reason.kind == "Step" for reason in answer.reasons)


def test_a_retry_with_the_same_key_joins_what_runs_at_a_dead_dispatchers_instance() -> None:
    cluster = ready_cluster(instances=2)
    named = {"idempotency": "k/0", "digest": b"d"}
    first = cluster.submit(prompt(30), 40, **named)  # type: ignore[arg-type]
    assert cluster.world.run(lambda: len(first.tokens) >= 5)
    cluster.kill_dispatcher(FIRST)
    cluster.clients.remove(first)
    retry = cluster.submit(prompt(30), 40, at=SECOND, **named)  # type: ignore[arg-type]
    other = cluster.submit(prompt(31), 40, at=SECOND, idempotency="k/0", digest=b"e")
    cluster.run_until_done()
    assert retry.is_exact
    assert retry.request == first.request
    assert other.rejected is not None
    assert "'k'" in other.rejected.detail
    assert len(sent(cluster, Place)) == 1
    late = cluster.submit(prompt(30), 40, at=SECOND, **named)  # type: ignore[arg-type]
    cluster.run_until_done()
    assert late.is_exact
    assert (late.request, len(sent(cluster, Place))) == (first.request, 1)
    assert late.finish is FinishReason.LENGTH
