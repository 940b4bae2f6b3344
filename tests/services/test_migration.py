"""Migrations in a whole cluster of real cores, in virtual time: every token exact, every slot given back."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dunlin.messages.dispatch import Accepted, Ready
from dunlin.messages.group import DialPeer, Fill, Filled, Reserve, Reserved
from dunlin.messages.plan import Drain, DrainDone, EvacuateDone
from simulator.cluster.scripted import ScriptedCluster
from tests.services.moving import (
    ENGINE,
    evacuate,
    finish,
    make_cluster,
    moving,
    other,
    running,
    sent,
    steps_of,
    until_sent,
)


@pytest.mark.parametrize(("tier", "has_agent"), [(False, False), (True, False), (False, True)])
def test_a_running_sequence_moves_and_its_client_sees_nothing(tier: bool, has_agent: bool) -> None:
    """Its KV goes by the host tier, or from engine to engine; with neither it is computed again."""
    cluster = make_cluster(engine={**ENGINE, "has_agent": has_agent})
    if not tier:
        cluster.world.kill(cluster.kvstore.address)
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    evacuate(cluster, source, target)
    ready = until_sent(cluster, Ready)
    assert cluster.world.run(lambda: len(cluster.instances[source].sequences) == 0, for_s=1.0)
    done = until_sent(cluster, EvacuateDone)
    assert (done.moved, done.stayed) == (1, 0)
    switched = len(client.tokens)
    assert ready.tokens == (99 + switched - 1 if tier or has_agent else 0)
    assert cluster.world.run(lambda: len(client.tokens) > switched, for_s=1.0)
    assert steps_of(cluster, target) == (0 if tier or has_agent else 99 + switched)
    assert cluster.instances[target].report().arrivals_total == 1
    assert cluster.instances[source].report().migrations_total == 1
    finish(cluster)


def test_the_pause_is_a_step_and_the_last_copy() -> None:
    cluster, client, _, _ = moving(prompt_tokens=299, tokens=20)
    until_sent(cluster, EvacuateDone)
    assert cluster.world.run(lambda: len(client.tokens) >= 60, for_s=2.0)
    gaps = [later - earlier for earlier, later in pairwise(client.times_s)]
    # Out and in again, 5 ms each and a hop about every message, besides the step that computes the next token.
    assert max(gaps) < 0.01 + 2 * 0.005 + 15 * 0.001
    assert sorted(gaps)[-2] < 0.0125
    finish(cluster)


def test_between_nodes_the_regions_go_from_kvstore_to_kvstore() -> None:
    cluster, client, source, target = moving(nodes=2)
    ready = until_sent(cluster, Ready)
    assert ready.tokens == 99 + len(client.tokens) - 1
    assert {fill.regions for fill in sent(cluster, Fill)} == {()}
    assert cluster.world.run(lambda: len(cluster.instances[source].sequences) == 0, for_s=1.0)
    assert cluster.world.run(lambda: len(client.tokens) > 50, for_s=5.0)
    assert steps_of(cluster, target) == 0
    finish(cluster)
    assert [len(kvstore.catalog) for kvstore in cluster.kvstores] == [0, 0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_a_move_copied_stays_as_a_checkpoint_and_saves_the_next_failover(nodes: int) -> None:
    cluster = make_cluster(3, nodes=nodes)
    client = cluster.submit(list(range(1, 200)), max_tokens=100)
    source = running(cluster, client)
    names = [*cluster.instances]
    target = names[(names.index(source) + 1) % 3]
    evacuate(cluster, source, target)
    until_sent(cluster, EvacuateDone)
    assert cluster.world.run(lambda: cluster.instances[target].sequences.running_count == 1, for_s=1.0)
    cluster.world.run(for_s=0.02)
    (sequence,) = cluster.instances[target].sequences.running
    assert sequence.kept_tokens >= 199
    finish(cluster)
    assert [len(kvstore.catalog) for kvstore in cluster.kvstores] == [0] * nodes


# --- what goes wrong ---


def stays(cluster: ScriptedCluster, source: str, detail: str) -> None:
    """The migration failed and its sequence goes on at the source."""
    done = until_sent(cluster, EvacuateDone)
    assert (done.moved, done.stayed) == (0, 1)
    assert detail in done.detail
    assert cluster.instances[source].sequences.running_count == 1
    finish(cluster)


@pytest.mark.parametrize(
    ("fields", "detail"),
    [({"weights_digest": "other"}, "other weights"), ({"slots": 64}, "never fit"), ({"kv_dtype": "bf16"}, "KV type")],
)
def test_a_target_that_cannot_take_it_says_why_and_it_stays(fields: dict[str, Any], detail: str) -> None:
    cluster = make_cluster(1)
    client = cluster.submit(list(range(1, 50)), max_tokens=100)
    source = running(cluster, client)
    cluster.engine = replace(cluster.engine, ready=replace(cluster.spec.engine.ready, **fields))
    target = cluster.start_instance("odd-2").address.name
    cluster.run_until_ready()
    evacuate(cluster, source, target)
    stays(cluster, source, detail)


def test_a_full_target_refuses() -> None:
    cluster = make_cluster(2)
    long = [cluster.submit([number] * 200, max_tokens=250) for number in range(4)]
    assert cluster.world.run(lambda: all(client.tokens for client in long), for_s=5.0)
    source = cluster.instance_running(long[0])
    evacuate(cluster, source, other(cluster, source))
    done = until_sent(cluster, EvacuateDone)
    assert (done.moved, done.stayed) == (0, 1)
    assert "too few free slots" in done.detail
    cluster.run_until_done()
    finish(cluster)


@pytest.mark.parametrize("kind", [DialPeer, Reserve, Reserved, Fill, Filled])
def test_a_target_that_dies_before_the_switch_leaves_it_where_it_is(kind: type[Any]) -> None:
    cluster, _, source, target = moving(instance={"migration.stage_timeout_s": 0.3})
    until_sent(cluster, kind)
    cluster.kill_instance(target)
    stays(cluster, source, "gone" if kind is not DialPeer else "no stream")


def test_a_target_that_dies_with_the_sequence_ready_gives_it_back_to_the_source() -> None:
    cluster, _, source, target = moving()
    until_sent(cluster, Ready)
    before = steps_of(cluster, source)
    cluster.kill_instance(target)
    assert cluster.world.run(lambda: cluster.instances[source].sequences.running_count == 1, for_s=1.0)
    assert steps_of(cluster, source) == before, "its KV was there"
    finish(cluster)


def test_a_target_that_dies_after_it_accepted_loses_nothing() -> None:
    cluster, _, _, target = moving()
    assert cluster.world.run(lambda: cluster.instances[target].sequences.running_count == 1, for_s=5.0)
    cluster.kill_instance(target)
    finish(cluster)


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_source_that_dies_on_the_way_loses_nothing_and_the_target_frees_its_room(kind: type[Any]) -> None:
    cluster, _, source, _ = moving()
    until_sent(cluster, kind)
    cluster.kill_instance(source)
    finish(cluster)


def test_a_source_that_dies_when_its_dispatcher_knows_leaves_the_kv_at_the_target() -> None:
    cluster, client, source, target = moving()
    place = until_sent(cluster, Accepted, 2)
    assert place.attempt == 2
    cluster.kill_instance(source)
    assert cluster.world.run(lambda: len(client.tokens) > 50, for_s=5.0)
    assert steps_of(cluster, target) == 0
    finish(cluster)


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_kvstore_that_dies_on_the_way_costs_time_alone(kind: type[Any]) -> None:
    cluster, client, _, target = moving()
    until_sent(cluster, kind)
    cluster.world.kill(cluster.kvstore.address)
    done = until_sent(cluster, EvacuateDone)
    assert (done.moved, done.stayed) == (1, 0)
    assert cluster.instance_running(client) == target
    finish(cluster)


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_dispatcher_that_dies_on_the_way_leaves_no_slot_behind(kind: type[Any]) -> None:
    cluster, _, _, _ = moving(max_tokens=350)
    until_sent(cluster, kind)
    cluster.world.kill(cluster.dispatcher.address)
    cluster.world.run(for_s=60.0)  # the grace, and what the rooms wait for
    assert cluster.all_free()


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_client_that_leaves_on_the_way_frees_both_ends(kind: type[Any]) -> None:
    cluster, client, _, _ = moving(max_tokens=350)
    until_sent(cluster, kind)
    cluster.disconnect(client)
    cluster.world.run(for_s=1.0)
    assert cluster.all_free(), "at once, not after a timeout"
    assert until_sent(cluster, EvacuateDone).moved in (0, 1)


def test_a_damaged_region_is_not_used() -> None:
    cluster, _, _, target = moving()
    fill = until_sent(cluster, Fill)
    cluster.tier.corrupt(fill.regions[0].host.offset_bytes)
    ready = until_sent(cluster, Ready)
    assert ready.tokens < fill.tokens
    finish(cluster)
    assert cluster.instances[target].report().arrivals_total == 1


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_sequence_that_ends_on_the_way_is_left_alone(left: int) -> None:
    cluster, _, _, _ = moving(max_tokens=10 + left, tokens=10)
    finish(cluster)
    assert until_sent(cluster, EvacuateDone).moved + until_sent(cluster, EvacuateDone).stayed == 1


def test_an_engine_that_dies_at_the_source_or_the_target_costs_time_alone() -> None:
    for crashed in ("source", "target"):
        for kind in (Reserve, Reserved, Fill, Filled, Ready):
            cluster, _, source, target = moving()
            until_sent(cluster, kind)
            cluster.engine_supervisor(source if crashed == "source" else target).crash()
            finish(cluster)


# --- fences ---


def test_a_deposed_managers_orders_change_nothing() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    evacuate(cluster, source, other(cluster, source), epoch=1)
    done = until_sent(cluster, EvacuateDone)
    assert (done.moved, done.stayed) == (0, 0)
    assert "stale" in done.detail
    term = cluster.manager.term
    assert term is not None
    cluster.world.post(cluster.manager.address, cluster.instances[source].address, Drain(1, 9))
    refused = until_sent(cluster, DrainDone)
    assert (refused.draining, "stale" in refused.detail) == (False, True)
    assert not cluster.instances[source].report().draining
    finish(cluster)


def test_an_order_that_comes_again_is_done_once() -> None:
    cluster = make_cluster()
    clients = [cluster.submit([number, *range(30)], max_tokens=100) for number in range(6)]
    assert cluster.world.run(lambda: all(len(client.tokens) >= 5 for client in clients), for_s=10.0)
    source = cluster.instance_running(clients[0])
    held = len(cluster.instances[source].sequences)
    order = evacuate(cluster, source, other(cluster, source))
    evacuate(cluster, source, other(cluster, source))
    done = until_sent(cluster, EvacuateDone)
    cluster.world.post(cluster.manager.address, cluster.instances[source].address, order)
    assert until_sent(cluster, EvacuateDone, 2) == done
    assert len(cluster.instances[source].sequences) == held - 1
    finish(cluster)


def test_a_target_fences_a_source_that_follows_an_older_term() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    core = cluster.instances[target]
    followed = cluster.manager.term.order_of(core.address)  # type: ignore[union-attr]
    assert followed is not None
    cluster.world.post(cluster.manager.address, core.address, replace(followed, epoch=followed.epoch + 1))
    evacuate(cluster, source, target)
    stays(cluster, source, "stale: this instance follows epoch")
