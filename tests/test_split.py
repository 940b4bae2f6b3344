"""A static split of prefill and decode instances, whole, in virtual time: who computes what, and what losses do."""

from collections.abc import Callable

import pytest

from dunlin.messages.dispatch import Place, Ready
from dunlin.messages.types import GroupRole
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

PROMPT = 40
TOKENS = 20


def split(instances: int = 4, slots: int = 1000, has_agent: bool = True, **settings: object) -> ScriptedCluster:
    engine = {"slots": slots, "has_agent": has_agent}
    cluster = ScriptedCluster(instances=instances, preset="distserve", engine=engine, **settings)
    cluster.run_until_ready()
    return cluster


def submit(cluster: ScriptedCluster, number: int = 8) -> list[RecordingClient]:
    return [cluster.submit([seed, *range(PROMPT - 1)], TOKENS, seed) for seed in range(number)]


def side(cluster: ScriptedCluster, part: GroupRole) -> list[str]:
    return [name for name, core in cluster.instances.items() if core.report().part is part]


def until(cluster: ScriptedCluster, holds: Callable[[], bool], for_s: float = 20.0) -> None:
    assert cluster.world.run(holds, for_s=for_s)


def finish(cluster: ScriptedCluster) -> None:
    cluster.run_until_done()
    assert [client.is_exact for client in cluster.clients] == [True] * len(cluster.clients)
    assert cluster.world.run(cluster.all_free, for_s=60.0)
    cluster.check_conservation()


def test_prompts_are_computed_on_one_side_and_everything_else_on_the_other() -> None:
    cluster = split()
    clients = submit(cluster)
    finish(cluster)
    for name in side(cluster, GroupRole.PREFILL):
        report = cluster.instances[name].report()
        assert report.tokens_total == report.migrations_total == 4
        assert report.prefill_tokens_total == 4 * PROMPT
    decoded = [cluster.instances[name].report() for name in side(cluster, GroupRole.DECODE)]
    assert [report.prefill_tokens_total for report in decoded] == [0, 0]
    assert sum(report.tokens_total for report in decoded) == len(clients) * (TOKENS - 1)
    assert sum(report.recomputed_tokens_total for report in decoded) == 0
    assert all(report.arrivals_total >= 3 for report in decoded), "the least loaded takes each"


def test_every_hand_over_says_why() -> None:
    cluster = split(2)
    submit(cluster, 1)
    finish(cluster)
    (ready,) = [message for *_, message in cluster.world.sent if isinstance(message, Ready)]
    (_, place) = [message for *_, message in cluster.world.sent if isinstance(message, Place)]
    assert ready.why is not None
    assert (ready.why.policy, ready.why.chosen) == ("most_room", "move to instance-1")
    assert ready.tokens == PROMPT
    assert place.why is not None
    assert (place.handle, place.why.chosen) == (ready.handle, ready.why.chosen)


def test_where_decode_instances_are_full_sequences_wait_and_newcomers_with_them() -> None:
    cluster = split(2, slots=256, dispatcher={"placement.max_waiting_per_instance": 2})
    submit(cluster, 24)
    prefill, decode = (cluster.instances[side(cluster, part)[0]] for part in (GroupRole.PREFILL, GroupRole.DECODE))
    until(cluster, lambda: decode.report().arrivals_total > 1 and cluster.dispatcher.report().queued > 0)
    assert prefill.report().running > 0
    finish(cluster)
    assert prefill.report().tokens_total == 24, "it decodes nothing"
    assert decode.report().preemptions_total <= 4, "what is taken over can be held"


def test_no_sequence_waits_for_ever_for_a_decode_instance_that_has_no_room() -> None:
    cluster = split(2, slots=256, instance={"kv_handoff.max_hold_s": 1.0})
    decode = cluster.instances[side(cluster, GroupRole.DECODE)[0]]
    cluster.engine_supervisor(decode.address.name).engine.is_stuck = True
    clients = submit(cluster, 6)
    cluster.run_until_done()
    assert all(client.is_exact for client in clients)


@pytest.mark.parametrize("lost", [GroupRole.PREFILL, GroupRole.DECODE])
def test_a_side_that_dies_is_replaced_from_the_other_and_every_stream_stays_exact(lost: GroupRole) -> None:
    cluster = split(4)
    clients = submit(cluster)
    until(cluster, lambda: all(len(client.tokens) > 2 for client in clients))
    for name in side(cluster, lost):
        cluster.kill_instance(name)
    submit(cluster, 4)
    finish(cluster)
    until(cluster, lambda: len(side(cluster, GroupRole.PREFILL)) == len(side(cluster, GroupRole.DECODE)) == 1)


def test_the_last_one_does_everything_until_another_comes() -> None:
    cluster = split(2)
    clients = submit(cluster)
    until(cluster, lambda: all(len(client.tokens) > 2 for client in clients))
    cluster.kill_instance(side(cluster, GroupRole.DECODE)[0])
    finish(cluster)
    assert side(cluster, GroupRole.LOCAL) == ["instance-0"]
    cluster.start_instance("instance-1")
    until(cluster, lambda: len(side(cluster, GroupRole.DECODE)) == 1)
    submit(cluster)
    finish(cluster)
    assert cluster.instances["instance-1"].report().arrivals_total == 8


def test_what_the_host_tier_has_no_room_for_goes_on_where_it_is() -> None:
    cluster = split(2, has_agent=False, tier_bytes=1 << 12, instance={"checkpoint.engine_share": 0.0})
    cluster.submit([1] * PROMPT, TOKENS)
    large = cluster.submit([2] * (6 * PROMPT), TOKENS)
    finish(cluster)
    assert large.is_exact
    decode = cluster.instances[side(cluster, GroupRole.DECODE)[0]].report()
    assert decode.prefill_tokens_total == 0
    assert decode.arrivals_total == 1


def test_regions_cross_from_node_to_node() -> None:
    cluster = split(2, nodes=2)
    submit(cluster)
    finish(cluster)
    decode = cluster.instances[side(cluster, GroupRole.DECODE)[0]].report()
    assert (decode.arrivals_total, decode.prefill_tokens_total) == (8, 0)


def test_a_new_manager_leaves_the_sides_as_they_are() -> None:
    cluster = split()
    before = side(cluster, GroupRole.PREFILL)
    submit(cluster)
    cluster.restart("global_manager")
    finish(cluster)
    assert side(cluster, GroupRole.PREFILL) == before
