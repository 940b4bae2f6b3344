"""Migrations in a whole cluster of real cores, in virtual time: every token exact, every slot given back."""

from typing import Any

import pytest

from dunlin.messages.plan import Shed, ShedDone
from tests.fakes.cluster import Client, Cluster

ENGINE = {"slots": 512, "step_s": 0.01}


def make_cluster(instances: int = 2, **settings: Any) -> Cluster:
    cluster = Cluster(instances, **{"engine": ENGINE, **settings})
    cluster.link.on_delivered = lambda event: cluster.check_conservation()
    cluster.run_until_ready()
    return cluster


def running(cluster: Cluster, client: Client, tokens: int = 5) -> str:
    """Run until the client has some tokens; who runs it."""
    assert cluster.link.run(lambda: len(client.tokens) >= tokens, for_s=10.0)
    return cluster.holder(client)


def other(cluster: Cluster, name: str) -> str:
    return next(one for one in cluster.instances if one != name)


def shed(cluster: Cluster, source: str, target: str, slots: int = 1, ticket: int = 1, epoch: int | None = None) -> Shed:
    term = cluster.manager.term
    assert term is not None
    order = Shed(epoch or term.epoch, ticket, cluster.instances[target].address, slots)
    cluster.link.post(cluster.manager.address, cluster.instances[source].address, order)
    return order


def sent(cluster: Cluster, kind: type[Any]) -> list[Any]:
    return [message for _, _, _, message in cluster.link.sent if isinstance(message, kind)]


def finish(cluster: Cluster) -> None:
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    cluster.link.run(for_s=20.0)
    assert cluster.all_free()


@pytest.mark.parametrize("tier", [False])
def test_a_running_sequence_moves_and_its_client_sees_nothing(tier: bool) -> None:
    cluster = make_cluster()
    if not tier:
        cluster.link.kill(cluster.kvstore.address)
    client = cluster.submit([1, 2, 3], max_tokens=60)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    assert cluster.link.run(lambda: cluster.instances[target].sequences.running_count == 1, for_s=2.0)
    assert cluster.link.run(lambda: len(cluster.instances[source].sequences) == 0, for_s=1.0)
    (done,) = sent(cluster, ShedDone)
    assert (done.moved, done.stayed) == (1, 0)
    finish(cluster)
