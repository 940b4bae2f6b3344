"""Drains, rebalancing and random faults beside migrations, in a whole cluster of real cores in virtual time."""

from random import Random

import pytest

from dunlin.messages.plan import DrainOutcome
from dunlin.messages.types import FinishReason
from simulator.cluster.recording_client import RecordingClient
from tests.services.moving import (
    drain,
    evacuate,
    finish,
    make_cluster,
)


def test_a_drained_instance_is_emptied_under_load_and_takes_nothing_until_told_to() -> None:
    cluster = make_cluster(3)
    clients = [cluster.submit([number, 2, 3], max_tokens=150) for number in range(24)]
    assert cluster.world.run(lambda: all(len(client.tokens) >= 5 for client in clients), for_s=10.0)
    name = cluster.instance_running(clients[0])
    assert drain(cluster, name).outcome is DrainOutcome.ORDERED
    core = cluster.instances[name]
    assert len(core.sequences) > 2
    assert cluster.world.run(lambda: len(core.sequences) == 0, for_s=3.0)
    assert not all(client.finish for client in clients), "they just ended"
    later = [cluster.submit([number, 9], max_tokens=20) for number in range(12)]
    cluster.run_until_done()
    assert all(client.is_exact for client in [*clients, *later])
    assert len(core.sequences) == 0
    assert core.report().draining
    assert drain(cluster, name, undo=True).outcome is DrainOutcome.ORDERED
    assert cluster.world.run(lambda: len(cluster.dispatcher.fleet.serving) == 3, for_s=2.0)
    finish(cluster)


def test_a_drain_outlives_the_leader_that_ordered_it() -> None:
    cluster = make_cluster(2)
    clients = [cluster.submit([number, 2, 3], max_tokens=100) for number in range(12)]
    assert cluster.world.run(lambda: all(len(client.tokens) >= 3 for client in clients), for_s=10.0)
    name = cluster.instance_running(clients[0])
    drain(cluster, name)
    assert cluster.world.run(lambda: cluster.instances[name].report().draining, for_s=1.0)
    cluster.restart("global_manager")
    assert cluster.world.run(lambda: len(cluster.instances[name].sequences) == 0, for_s=5.0)
    finish(cluster)


# --- everything at once ---


class Campaign:
    """Moves, drains and faults at random times in a cluster under load."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        nodes = 1 + seed % 2
        self.cluster = make_cluster(3, nodes=nodes, manager={"rebalance.policy": "llumnix"}, tier_bytes=1 << 17)
        self.left: list[RecordingClient] = []
        self.restarting_until_s: dict[str, float] = {}

    def run(self, acts: int) -> None:
        """Submit, act, wait a little; then everything must end well."""
        often = [self.submit] * 4 + [self.evacuate] * 4
        choices = [*often, self.drain, self.undrain, self.kill, self.crash, self.leave, self.flip, self.depose]
        for _ in range(acts):
            self.random.choice(choices)()
            self.cluster.world.run(for_s=self.random.choice((0.0, 0.003, 0.01, 0.05, 0.3)))
        for name in self.cluster.instances:
            drain(self.cluster, name, undo=True)
        for client in self.cluster.clients:
            if client in self.left:
                assert client.tokens == client.expected[: len(client.tokens)]
                client.finish = client.finish or FinishReason.CANCELLED
        self.cluster.run_until_done()
        wrong = [client for client in self.cluster.clients if client not in self.left and not client.is_exact]
        assert not wrong
        self.cluster.world.run(for_s=40.0)
        assert self.cluster.all_free()

    def name(self) -> str:
        return self.random.choice(list(self.cluster.instances))

    def submit(self) -> None:
        prompt = [self.random.randrange(1000) for _ in range(self.random.choice((3, 40, 150)))]
        self.cluster.submit(prompt, max_tokens=self.random.choice((5, 40, 120)))

    def evacuate(self) -> None:
        source, target = self.name(), self.name()
        moves = self.cluster.manager.move_orders
        if source != target and moves is not None:
            moves.tickets += 1
            evacuate(self.cluster, source, target, self.random.choice((1, 100, 1000)), moves.tickets)

    def drain(self) -> None:
        drain(self.cluster, self.name())

    def undrain(self) -> None:
        drain(self.cluster, self.name(), undo=True)

    def kill(self) -> None:
        name = self.name()
        self.cluster.kill_instance(name)
        self.cluster.start_instance(name)
        self.restarting_until_s.pop(name, None)

    def crash(self) -> None:
        name = self.name()
        if self.cluster.world.now_s > self.restarting_until_s.get(name, 0.0):
            self.cluster.engine_supervisor(name).crash()
            self.restarting_until_s[name] = self.cluster.world.now_s + 1.1

    def leave(self) -> None:
        going = [client for client in self.cluster.clients if not client.finish and client not in self.left]
        if going:
            client = self.random.choice(going)
            self.left.append(client)
            self.cluster.disconnect(client)

    def flip(self) -> None:
        offsets = [offset for offset, content in self.cluster.tier.contents.items() if content]
        if offsets:
            self.cluster.tier.corrupt(self.random.choice(offsets))

    def depose(self) -> None:
        self.cluster.restart("global_manager")


@pytest.mark.parametrize("seed", range(8))
def test_random_moves_and_faults_lose_nothing(seed: int) -> None:
    Campaign(seed).run(40)
