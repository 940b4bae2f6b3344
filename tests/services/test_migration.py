"""Migrations in a whole cluster of real cores, in virtual time: every token exact, every slot given back."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Joined, Message
from dunlin.messages.plan import DrainOutcome, DrainReply, DrainRequest, Shed, ShedDone
from tests.fakes.cluster import Client, Cluster

ENGINE = {"slots": 512, "step_s": 0.01}


@dataclass
class Ear:
    """Somebody who asks and listens."""

    address: Address
    heard: list[Any] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if not isinstance(message, Joined):
            self.heard.append(message)
        return []


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


def drain(cluster: Cluster, name: str, undo: bool = False) -> DrainReply:
    """Ask the manager, as a tool does; its answer."""
    tool = Ear(Address("client", f"tool-{cluster.link.delivered}"))
    cluster.link.add(tool.address, tool)
    cluster.link.join(tool.address, cluster.manager.address)
    cluster.link.post(tool.address, cluster.manager.address, DrainRequest(name, undo))
    assert cluster.link.run(lambda: bool(tool.heard), for_s=1.0)
    (reply,) = tool.heard
    assert isinstance(reply, DrainReply)
    return reply


def test_a_drained_instance_is_emptied_under_load_and_takes_nothing_until_told_to() -> None:
    cluster = make_cluster(3)
    clients = [cluster.submit([number, 2, 3], max_tokens=150) for number in range(24)]
    assert cluster.link.run(lambda: all(len(client.tokens) >= 5 for client in clients), for_s=10.0)
    name = cluster.holder(clients[0])
    assert drain(cluster, name).outcome is DrainOutcome.ORDERED
    core = cluster.instances[name]
    assert len(core.sequences) > 2
    assert cluster.link.run(lambda: len(core.sequences) == 0, for_s=3.0)
    assert not all(client.finish for client in clients), "they just ended"
    later = [cluster.submit([number, 9], max_tokens=20) for number in range(12)]
    cluster.run_until_done()
    assert all(client.is_exact for client in [*clients, *later])
    assert len(core.sequences) == 0
    assert core.report().draining
    assert drain(cluster, name, undo=True).outcome is DrainOutcome.ORDERED
    assert cluster.link.run(lambda: len(cluster.dispatcher.fleet.placeable) == 3, for_s=2.0)
    finish(cluster)


def test_a_drain_outlives_the_leader_that_ordered_it() -> None:
    cluster = make_cluster(2)
    clients = [cluster.submit([number, 2, 3], max_tokens=100) for number in range(12)]
    assert cluster.link.run(lambda: all(len(client.tokens) >= 3 for client in clients), for_s=10.0)
    name = cluster.holder(clients[0])
    drain(cluster, name)
    assert cluster.link.run(lambda: cluster.instances[name].report().draining, for_s=1.0)
    cluster.link.kill(cluster.manager.address)
    cluster.start_manager()
    assert cluster.link.run(lambda: len(cluster.instances[name].sequences) == 0, for_s=5.0)
    finish(cluster)
