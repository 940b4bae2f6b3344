"""The dispatcher among instances that die, freeze, refuse and repeat themselves: every stream stays exact.

Virtual time over the fake link; each seed is one storm that replays exactly. The next token of a sequence is a function
of all tokens before it, so a lost, repeated or swapped token anywhere changes the rest of the text.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from dunlin.effects import Address, After, Effect, Gone, Message, Send
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place, Refusal, Refused, Returned, Tokens
from dunlin.messages.door import Abort, Admitted, Delta, SubmitRejected
from dunlin.messages.fleet import FleetView
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from simulator.cluster.world import World
from tests.services.dispatcher.factories import MONITOR, SELF, client, member, submit
from tests.settings import configured

STEP_S = 0.01
SUSPECT_AFTER_S = 3.0
MOST_RUNNING = 6


def next_token(tokens: Sequence[int]) -> int:
    return (sum(tokens) * 31 + len(tokens) * 7) % 1009


def oracle(prompt: Sequence[int], number: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Stepped:
    """The instance's own timer."""

    counter: int


class StormyInstance:
    """Runs what it gets, one token a step; sometimes refuses, gives back, or says a batch twice."""

    def __init__(self, random: Random) -> None:
        self.running: dict[int, tuple[Place, list[int]]] = {}
        self.seen = Counter[str]()
        self._random = random
        self._counter = 0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        match message:
            case Place():
                return self._take(message)
            case Cancel(request, attempt):
                held = self.running.get(request)
                if held is not None and held[0].attempt <= attempt:
                    del self.running[request]
                return [Send(SELF, Ended(request, attempt))]
            case Gone():
                self.running.clear()
            case Stepped(counter) if counter == self._counter:
                return self._step()
        return []

    def _take(self, place: Place) -> list[Effect]:
        if len(self.running) >= MOST_RUNNING or self._random.random() < 0.05:
            self.seen["refused"] += 1
            return [Send(SELF, Refused(place.request, place.attempt, Refusal.FULL))]
        self.running[place.request] = (place, list(place.tokens))
        accepted = Send(SELF, Accepted(place.request, place.attempt, place.request))
        return [accepted] if len(self.running) > 1 else [accepted, self._again()]

    def _again(self) -> After:
        self._counter += 1
        return After(STEP_S, Stepped(self._counter))

    def _step(self) -> list[Effect]:
        if self.running and self._random.random() < 0.01:
            return [*self._give_back(), self._again()]
        rows = [self._row(place, tokens) for place, tokens in list(self.running.values())]
        if not rows:
            return []
        request, attempt, position, token, finish = zip(*rows, strict=True)
        batch = Tokens(
            array("q", request),
            array("i", attempt),
            array("q", position),
            array("i", token),
            array("f", [0.0] * len(rows)),
            array("b", finish),
        )
        twice = self._random.random() < 0.02
        self.seen["repeated"] += twice
        return [*([Send(SELF, batch)] * (1 + twice)), self._again()]

    def _give_back(self) -> list[Effect]:
        """As if its engine had crashed."""
        self.seen["returned"] += 1
        places = [place for place, _ in self.running.values()]
        self.running.clear()
        return [Send(SELF, Returned(place.request, place.attempt)) for place in places]

    def _row(self, place: Place, tokens: list[int]) -> tuple[int, int, int, int, int]:
        token = next_token(tokens)
        tokens.append(token)
        done = len(tokens) - place.prompt_tokens == place.max_tokens
        if done:
            del self.running[place.request]
        return (
            place.request,
            place.attempt,
            len(tokens) - 1,
            token,
            FinishReason.LENGTH if done else FinishReason.RUNNING,
        )


@dataclass
class Listener:
    """A client: what it was told."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason = FinishReason.RUNNING
    rejected: bool = False

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        match message:
            case Delta():
                assert self.finish is FinishReason.RUNNING, "a word after the end"
                self.tokens.extend(message.tokens)
                self.finish = message.finish
            case SubmitRejected():
                self.rejected = True
            case Admitted():
                pass
        return []


class Storm:
    """One dispatcher, three instances, clients that come and go."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.random = Random(seed)
        self.world = World(latency_s=0.0005)
        self.world.keep_sent = False
        self.core = DispatcherCore(SELF, configured(DispatcherConfig, **config))
        self.world.add(SELF, self.core)
        self.instances: dict[Address, StormyInstance] = {}
        self.frozen: dict[Address, float] = {}
        self.listeners: dict[Address, Listener] = {}
        self.asked: dict[Address, tuple[list[int], int]] = {}
        self.left: list[Address] = []
        self.seen = Counter[str]()
        self._version = 0
        self._incarnations = 100
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> None:
        self._incarnations += 1
        address = Address("instance", name, self._incarnations)
        self.instances[address] = StormyInstance(self.random)
        self.world.add(address, self.instances[address])
        self.world.connect(SELF, address)

    def ask(self, number: int) -> None:
        address = client(number)
        self.listeners[address] = Listener()
        self.world.add(address, self.listeners[address])
        self.world.connect(SELF, address)
        prompt = [self.random.randrange(1000) for _ in range(self.random.randrange(1, 40))]
        most = self.random.randrange(1, 120)
        self.asked[address] = (prompt, most)
        self.world.post(address, SELF, submit(prompt, max_tokens=most))

    def look(self) -> None:
        """The monitor's view of now."""
        self._version += 1
        members = tuple(
            member(
                address,
                free_slots=1000 - sum(len(tokens) for _, tokens in instance.running.values()),
                running=len(instance.running),
                suspect=self.world.now_s - self.frozen.get(address, self.world.now_s) > SUSPECT_AFTER_S,
            )
            for address, instance in self.instances.items()
        )
        self.world.post(MONITOR, SELF, FleetView(self._version, members))

    def blow(self) -> None:
        """One fault, perhaps."""
        awake = [address for address in self.instances if address not in self.frozen]
        dice = self.random.random()
        if dice < 0.05 and len(awake) > 1:
            victim = self.random.choice(awake)
            self.seen["killed holding work"] += bool(self.instances[victim].running)
            self.world.kill(victim)
            del self.instances[victim]
            self.start(victim.name)
        elif dice < 0.08 and len(awake) > 1:
            victim = self.random.choice(awake)
            self.world.pause(victim)
            self.frozen[victim] = self.world.now_s
        elif dice < 0.2 and self.listeners:
            self.leave(self.random.choice(list(self.listeners)))

    def thaw(self) -> None:
        for address, since_s in list(self.frozen.items()):
            if self.world.now_s - since_s > self.random.uniform(0.5, 8.0):
                del self.frozen[address]
                self.world.resume(address)
                self.seen["woken holding work"] += bool(self.instances[address].running)

    def leave(self, address: Address) -> None:
        if address not in self.left:
            self.left.append(address)
            self.world.post(address, SELF, Abort())

    def settled(self) -> bool:
        return all(
            listener.finish is not FinishReason.RUNNING or listener.rejected or address in self.left
            for address, listener in self.listeners.items()
        )

    def rage(self, ticks: int) -> None:
        """Faults and new requests for `ticks` tenths of a second, then calm until all is done."""
        for tick in range(ticks):
            self.look()
            self.ask(tick)
            self.blow()
            self.thaw()
            self.world.run(for_s=0.1)
            self.core.journal.check_integrity()
        for _ in range(600):
            self.look()
            self.thaw()
            self.world.run(for_s=0.1)
            if self.settled() and not self.frozen:
                return
        raise AssertionError("some requests never ended")


@pytest.mark.parametrize("seed", range(12))
def test_every_stream_is_exact_in_a_storm(seed: int) -> None:
    storm = Storm(seed)
    storm.rage(150)
    for address, (prompt, most) in storm.asked.items():
        told = storm.listeners[address]
        expected = oracle(prompt, most)
        if address in storm.left and told.finish is not FinishReason.LENGTH:
            assert told.tokens == expected[: len(told.tokens)]
        else:
            assert (told.finish, told.tokens) == (FinishReason.LENGTH, expected)
    report = storm.core.report()
    assert len(storm.core.journal) == 0
    assert (report.failed_total, report.refused_total) == (0, 0)
    assert report.finished_total + report.cancelled_total == len(storm.asked)
    assert report.tokens_total == sum(len(listener.tokens) for listener in storm.listeners.values())
    storm.world.run(for_s=5.0)
    assert all(not instance.running for instance in storm.instances.values()), (
        "an instance runs a request that has ended"
    )
    assert len(storm.core._fences) == 0
    assert all(not instance.reserved for instance in storm.core.fleet._connected.values())


def test_the_storms_hold_what_they_promise() -> None:
    """A calm storm proves nothing: count what happened in all of them."""
    seen = Counter[str]()
    replaced = stale = 0
    for seed in range(4):
        storm = Storm(seed)
        storm.rage(150)
        seen += storm.seen
        for instance in storm.instances.values():
            seen += instance.seen
        replaced += storm.core.report().replaced_total
        stale += storm.core.report().stale_total
    for what in ("killed holding work", "woken holding work", "refused", "returned", "repeated"):
        assert seen[what] > 0, what
    assert replaced > 20
    assert stale > 20


def test_the_same_storm_twice_is_the_same() -> None:
    reports = []
    for _ in range(2):
        storm = Storm(3)
        storm.rage(60)
        reports.append((storm.core.report(), storm.world.delivered, storm.world.now_s))
    assert reports[0] == reports[1]


def test_a_full_house_turns_clients_away_and_serves_the_rest() -> None:
    storm = Storm(5, admission__max_queued=4)
    for number in range(200):
        storm.ask(number)
    storm.rage(0)
    rejected = [address for address, listener in storm.listeners.items() if listener.rejected]
    assert rejected
    for address, (prompt, most) in storm.asked.items():
        if address not in rejected:
            assert storm.listeners[address].tokens == oracle(prompt, most)
    assert storm.core.report().refused_total == len(rejected)


def test_columns_are_copied() -> None:
    """A `Place` in flight does not grow with the journal."""
    storm = Storm(1)
    storm.look()
    storm.ask(0)
    storm.world.keep_sent = True
    storm.world.run(for_s=1.0)
    (place,) = [message for _, _, _, message in storm.world.sent if isinstance(message, Place)]
    assert place.tokens == i32(storm.asked[client(0)][0])
