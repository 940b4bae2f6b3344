"""Helpers for tests of migrations: a cluster of real cores, orders by hand, and what must be true in the end."""

from dataclasses import dataclass, field
from typing import Any

from dunlin.effects import Address, Effect, Joined, Message
from dunlin.messages.plan import DrainReply, DrainRequest, Evacuate
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

ENGINE = {"slots": 512, "step_s": 0.01, "has_agent": False}
"""Engines that cannot be met: KV goes by the host tier."""


@dataclass
class Ear:
    """A client that sends one request and collects its tokens."""

    address: Address
    heard: list[Any] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if not isinstance(message, Joined):
            self.heard.append(message)
        return []


def make_cluster(instances: int = 2, **settings: Any) -> ScriptedCluster:
    cluster = ScriptedCluster(instances=instances, **{"engine": ENGINE, **settings})
    cluster.world.on_delivered = lambda event: cluster.check_conservation()
    cluster.run_until_ready()
    return cluster


def running(cluster: ScriptedCluster, client: RecordingClient, tokens: int = 5) -> str:
    """Run until the client has some tokens; returns the instance that runs the request."""
    assert cluster.world.run(lambda: len(client.tokens) >= tokens, for_s=10.0)
    return cluster.instance_running(client)


def moving(
    prompt_tokens: int = 99, max_tokens: int = 100, tokens: int = 5, **settings: Any
) -> tuple[ScriptedCluster, RecordingClient, str, str]:
    """A cluster, the client of its only sequence, which has `tokens`, and source and target of its evacuation."""
    cluster = make_cluster(**settings)
    client = cluster.submit(list(range(1, prompt_tokens + 1)), max_tokens=max_tokens)
    source = running(cluster, client, tokens)
    target = other(cluster, source)
    evacuate(cluster, source, target)
    return cluster, client, source, target


def other(cluster: ScriptedCluster, name: str) -> str:
    return next(one for one in cluster.instances if one != name)


def evacuate(
    cluster: ScriptedCluster, source: str, target: str, slots: int = 1, ticket: int = 1, epoch: int | None = None
) -> Evacuate:
    term = cluster.manager.term
    assert term is not None
    order = Evacuate(epoch or term.epoch, ticket, cluster.instances[target].address, slots)
    cluster.world.post(cluster.manager.address, cluster.instances[source].address, order)
    return order


def sent(cluster: ScriptedCluster, kind: type[Any]) -> list[Any]:
    return [message for _, _, _, message in cluster.world.sent if isinstance(message, kind)]


def finish(cluster: ScriptedCluster) -> None:
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    cluster.world.run(for_s=20.0)
    assert cluster.all_free()


def until_sent(cluster: ScriptedCluster, kind: type[Any], count: int = 1) -> Any:
    """Run until so many messages of that kind are on their way; the last of them."""
    assert cluster.world.run(lambda: len(sent(cluster, kind)) >= count, for_s=10.0), f"no {kind.__name__}"
    return sent(cluster, kind)[-1]


def steps_of(cluster: ScriptedCluster, name: str) -> int:
    return cluster.instances[name].report().prefill_tokens_total


def drain(cluster: ScriptedCluster, name: str, undo: bool = False) -> DrainReply:
    """Ask the manager, as a tool does; its answer."""
    tool = Ear(Address("client", f"tool-{cluster.world.delivered}"))
    cluster.world.add(tool.address, tool)
    cluster.world.connect(tool.address, cluster.manager.address)
    cluster.world.post(tool.address, cluster.manager.address, DrainRequest(name, undo))
    assert cluster.world.run(lambda: bool(tool.heard), for_s=1.0)
    (reply,) = tool.heard
    assert isinstance(reply, DrainReply)
    return reply
