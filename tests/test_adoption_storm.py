"""Random faults of dispatchers and instances, at random times of a virtual clock, with named requests among others.

A seed that fails replays exactly.
"""

import random

import pytest

from dunlin.messages.dispatch import Adopted
from dunlin.messages.types import FinishReason
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

NAMES = ("dispatcher-0", "dispatcher-1", "dispatcher-2")
STEPS = 40


class Storm:
    """One cluster, one stream of random events. A client moves on at some time after its dispatcher failed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cluster = ScriptedCluster(
            instances=2,
            dispatchers=3,
            engine={"slots": self.draw.choice([160, 512])},
            instance={
                "scheduler.max_running": self.draw.choice([3, 8]),
                "retention.orphan_grace_s": self.draw.choice([0.3, 30.0]),
            },
        )
        self.cluster.run_until_ready()
        self.cluster.world.on_delivered = lambda event: self.cluster.check_conservation()
        self.paused: list[str] = []
        self.dead: list[str] = []
        self.abandoned: list[RecordingClient] = []

    def run(self) -> None:
        for number in range(STEPS):
            self.draw.choice(
                [self.submit, self.submit, self.submit, self.kill, self.pause, self.wake, self.start, self.lose]
            )()
            self.cluster.world.run(for_s=self.draw.choice([0.0, 0.002, 0.02, 0.2, 0.5]))
            self.move_some()
            for core in self.cluster.dispatchers.values():
                core.journal.check_integrity()
            if number % 4 == 0:
                self.retry()
        self.calm()

    def submit(self) -> None:
        alive = self.alive()
        salt = len(self.cluster.clients) + len(self.abandoned)
        prompt = [(salt * 31 + position * 7) % 1000 for position in range(self.draw.randrange(5, 40))]
        named = {"idempotency": f"k{salt}/0", "digest": b"d"} if self.draw.random() < 0.3 else {}
        self.cluster.submit(prompt, self.draw.randrange(1, 90), seed=salt, at=self.draw.choice(alive), **named)  # type: ignore[arg-type]

    def retry(self) -> None:
        """A client of a named request is lost, and another one comes with the same name, somewhere."""
        named = [client for client in self.cluster.clients if client.submit.idempotency and not client.finish]
        if not named:
            return
        client = self.draw.choice(named)
        self.cluster.clients.remove(client)
        self.abandoned.append(client)
        if client.door is not None and self.cluster.world.is_up(client.door):
            self.cluster.world.disconnect(client.address, client.door, "client left")
        submit = client.submit
        assert submit.max_tokens is not None
        seed = submit.sampling.seed
        self.cluster.submit(
            list(submit.tokens), submit.max_tokens, seed, at=self.draw.choice(self.alive()),
            idempotency=submit.idempotency, digest=b"d",
        )  # fmt: skip

    def kill(self) -> None:
        if len(self.alive()) > 1:
            name = self.draw.choice(self.alive())
            self.cluster.kill_dispatcher(name)
            self.dead.append(name)

    def start(self) -> None:
        if self.dead:
            self.cluster.start_dispatcher(self.dead.pop(0))

    def pause(self) -> None:
        if len(self.alive()) > 1:
            name = self.draw.choice(self.alive())
            self.cluster.world.pause(self.cluster.dispatchers[name].address)
            self.paused.append(name)

    def wake(self) -> None:
        if self.paused:
            self.cluster.world.resume(self.cluster.dispatchers[self.paused.pop(0)].address)

    def lose(self) -> None:
        """An instance dies and is started again."""
        if self.draw.random() < 0.5:
            name = self.draw.choice(list(self.cluster.instances))
            self.cluster.kill_instance(name)
            self.cluster.world.run(for_s=0.1)
            self.cluster.start_instance(name)

    def alive(self) -> list[str]:
        return [name for name in self.cluster.dispatchers if name not in self.paused]

    def move_some(self, all_of_them: bool = False) -> None:
        doors = [self.cluster.dispatchers[name].address for name in self.alive()]
        for client in self.cluster.clients:
            if client.finish or client.rejected or client.door in doors:
                continue
            if all_of_them or self.draw.random() < 0.5:
                self.cluster.reconnect(client, self.draw.choice(self.alive()))

    def calm(self) -> None:
        """Everybody wakes, every client finds somebody."""
        self.move_some(all_of_them=True)
        while self.paused:
            self.wake()
        self.cluster.run_until_done()


@pytest.mark.parametrize("seed", range(10))
def test_no_token_is_lost_doubled_or_different(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    cluster = storm.cluster
    for client in cluster.clients:
        assert client.rejected is None, client.rejected
        assert client.finish is FinishReason.LENGTH, client.detail
        assert client.is_exact, client.request
    for client in storm.abandoned:
        assert client.tokens == client.expected[: len(client.tokens)]
    assert cluster.world.run(cluster.all_free, for_s=90.0)
    for core in cluster.dispatchers.values():
        assert cluster.world.run(lambda core=core: len(core.journal) == 0, for_s=90.0)  # type: ignore[misc]


def test_the_storm_adopts_what_it_should() -> None:
    """A check that nothing can fail is no check."""
    adopted = 0
    for seed in range(100, 103):
        storm = Storm(seed)
        storm.run()
        adopted += sum(isinstance(message, Adopted) for _, _, _, message in storm.cluster.world.sent)
    assert adopted > 5
