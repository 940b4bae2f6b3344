"""An instance dies in a whole cluster of real cores, in virtual time: its sequences go on from what it had kept."""

from typing import Any

import pytest

from dunlin.messages.pool import FindRegions
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

ENGINE = {"slots": 1024, "step_s": 0.01, "token_s": 0.0005, "move_s": 0.001}


def make_cluster(**settings: Any) -> ScriptedCluster:
    instance = {"checkpoint.engine_share": 0.5, "checkpoint.min_tokens": 16, **settings.pop("instance", {})}
    cluster = ScriptedCluster(instances=2, engine=ENGINE, instance=instance, **settings)
    cluster.world.on_delivered = lambda event: cluster.check_conservation()
    cluster.run_until_ready()
    return cluster


def far(cluster: ScriptedCluster, client: RecordingClient, tokens: int = 40) -> str:
    """Run until the client has that many; returns the instance that runs the request."""
    assert cluster.world.run(lambda: len(client.tokens) >= tokens, for_s=10.0)
    return cluster.instance_running(client)


def finish(cluster: ScriptedCluster) -> None:
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    cluster.world.run(for_s=40.0)
    assert cluster.all_free()
    assert len(cluster.kvstore.catalog) == 0


def report(cluster: ScriptedCluster) -> Any:
    (core,) = cluster.instances.values()
    return core.report()


def test_the_other_instance_starts_from_what_the_dead_one_kept() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(100)), max_tokens=120)
    cluster.kill_instance(far(cluster, client))
    finish(cluster)
    assert report(cluster).claimed_tokens_total >= 112
    assert report(cluster).prefill_tokens_total < 40


def test_without_checkpoints_all_of_it_is_computed_again() -> None:
    cluster = make_cluster(instance={"checkpoint.engine_share": 0.0})
    client = cluster.submit(list(range(100)), max_tokens=120)
    cluster.kill_instance(far(cluster, client))
    finish(cluster)
    assert (report(cluster).claimed_tokens_total, report(cluster).prefill_tokens_total >= 140) == (0, True)


@pytest.mark.parametrize("count", [1, 6])
def test_a_hung_instance_that_wakes_later_does_no_harm(count: int) -> None:
    """The stopped one is suspected, its work goes on elsewhere; awake, its names for the regions are worth nothing."""
    cluster = make_cluster()
    clients = [cluster.submit([index, *range(60)], max_tokens=300) for index in range(count)]
    name = far(cluster, clients[0])
    address = cluster.instances[name].address
    cluster.world.pause(address)
    moved = [message for *_, message in cluster.world.sent if isinstance(message, FindRegions)]
    assert moved == []
    asked = cluster.world.run(
        lambda: any(isinstance(message, FindRegions) for *_, message in cluster.world.sent), for_s=15.0
    )
    assert asked
    cluster.world.run(for_s=0.2)
    cluster.world.resume(address)
    finish(cluster)
    assert sum(core.report().claimed_tokens_total for core in cluster.instances.values()) >= 80


def test_damage_in_the_tier_costs_time_and_nothing_else() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(100)), max_tokens=120)
    name = far(cluster, client)
    offsets = [entry.host.offset_bytes for entry in cluster.kvstore.catalog.entries_of(cluster.instances[name].address)]
    cluster.kill_instance(name)
    cluster.tier.corrupt(offsets[1])
    finish(cluster)
    assert report(cluster).corrupt_regions_total == 1
    assert 0 < report(cluster).claimed_tokens_total < 112


def test_a_kvstore_that_dies_with_the_instance_leaves_recomputing() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(100)), max_tokens=120)
    name = far(cluster, client)
    cluster.world.kill(cluster.kvstore.address)
    cluster.kill_instance(name)
    cluster.run_until_done()
    assert client.is_exact
    assert report(cluster).claimed_tokens_total == 0
