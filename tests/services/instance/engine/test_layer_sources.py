"""Where the engine is told to read layers from: its peers one after the other, then the checkpoint."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.engine import Met, Remap
from dunlin.messages.plan import RemapLayers
from dunlin.messages.types import FinishReason, RemapPhase, i32
from services.instance.engine.layer_sources import LayerSources
from simulator.cluster.scripted import ScriptedCluster
from tests.services.moving import ENGINE, evacuate, finish, make_cluster, other, running, sent

A, B = Address("engine", "a"), Address("engine", "b")
LAYERS = {"layers": i32(range(4)), "weights_bytes": 4096, "has_agent": True}
SOME = i32([0, 2])


def test_peers_are_named_one_after_the_other_then_the_checkpoint() -> None:
    sources = LayerSources("peer", lambda: [A, B])
    sources.begin()
    assert [(each.layer, each.peer) for each in sources.named([1, 3])] == [(1, A), (3, A)]
    assert sources.fail("gone")
    assert [(each.layer, each.peer) for each in sources.named([1])] == [(1, B)]
    assert sources.fail("has it not")
    assert sources.named([1]) == ()
    why = sources.why([1])
    assert (why.chosen, [(one.option, one.reason) for one in why.rejected]) == (
        "load from disk",
        [("a", "gone"), ("b", "has it not")],
    )
    assert not sources.fail("no such file")
    sources.begin()
    assert [each.peer for each in sources.named([1])] == [A], "another load begins with the first peer"


def test_the_disk_is_asked_at_once_if_that_is_chosen_or_no_peer_is_known() -> None:
    for sources in (LayerSources("disk", lambda: [A]), LayerSources("peer", list)):
        sources.begin()
        assert sources.named([1]) == ()
        assert not sources.fail("no such file")


def cluster_of_met_engines(**settings: Any) -> tuple[ScriptedCluster, str, str]:
    """Two instances; the engine of the first has written KV into the memory of the other's."""
    cluster = make_cluster(engine={**ENGINE, **LAYERS}, **settings)
    client = cluster.submit(list(range(1, 60)), max_tokens=60)
    source = running(cluster, client)
    evacuate(cluster, source, other(cluster, source))
    finish(cluster)
    assert [each.detail for each in sent(cluster, Met)] == [""]
    return cluster, source, other(cluster, source)


def drop_and_restore(cluster: ScriptedCluster, name: str) -> list[Remap]:
    """Order layers away and back; the LOAD commands."""
    core, term = cluster.instances[name], cluster.manager.term
    assert term is not None
    for ticket, layers in ((1, SOME), (2, i32())):
        cluster.world.post(cluster.manager.address, core.address, RemapLayers(term.epoch, ticket, layers))
        assert cluster.world.run(lambda: bool(core.report().layers_held == (len(layers) or 4)), for_s=5.0)  # noqa: B023
        cluster.world.run(for_s=0.5)
    assert core.layer_changes.is_whole
    return [each for each in sent(cluster, Remap) if each.phase is RemapPhase.LOAD]


def test_layers_come_back_from_the_engine_to_which_kv_went() -> None:
    cluster, source, target = cluster_of_met_engines()
    (load,) = drop_and_restore(cluster, source)
    assert [(each.layer, each.peer) for each in load.sources] == [
        (1, Address("engine", target)),
        (3, Address("engine", target)),
    ]
    assert load.why is not None
    assert load.why.chosen == f"load from {target}"
    client = cluster.submit([5, 6, 7], max_tokens=4)
    cluster.run_until_done()
    assert client.finish is FinishReason.LENGTH


@pytest.mark.parametrize("loss", ["crash", "drop"])
def test_what_a_peer_does_not_deliver_comes_from_the_disk(loss: str) -> None:
    cluster, source, target = cluster_of_met_engines(instance={"remap.restore_after_s": 60.0})
    if loss == "crash":
        cluster.engine_supervisor(target).crash()
    else:
        drop(cluster, target)
    loads = [each for each in drop_and_restore(cluster, source) if each.sources or each.why]
    assert [bool(each.sources) for each in loads] == [True, False]
    assert loads[1].why is not None
    assert [one.option for one in loads[1].why.rejected] == [target]


def drop(cluster: ScriptedCluster, name: str) -> None:
    core, term = cluster.instances[name], cluster.manager.term
    assert term is not None
    cluster.world.post(cluster.manager.address, core.address, RemapLayers(term.epoch, 1, i32([0])))
    assert cluster.world.run(lambda: core.report().layers_held == 1, for_s=5.0)
