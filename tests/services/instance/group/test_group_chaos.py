"""A group of whole instances to which things happen: exact tokens, one end per attempt, and nothing left anywhere."""

import random

import pytest

from dunlin.messages.dispatch import Cancel, Ended, Poisoned, Refused, Returned
from tests.services.instance.bench import Attempt
from tests.services.instance.group.group_bench import GroupBench

KINDS = ("place", "place", "own", "crash", "hang", "cancel", "reset", "order", "nothing")


class Chaos:
    """A group, and dispatchers that place again what is returned."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        policy = self.random.choice(("balanced", "fewest", "widest"))
        chosen = {"groups__policy": policy, "groups__ring": seed % 2 == 1}
        self.bench = GroupBench(3, slots=96, engine={"restart_s": 0.2}, **chosen)
        self.attempts: dict[int, tuple[int, Attempt]] = {}
        self.cancelled: set[int] = set()

    def happen(self) -> None:
        kind = self.random.choice(KINDS)
        bench, at = self.bench, self.random.randrange(3)
        request = len(self.attempts) + 1
        if kind == "place" and request <= 10:
            tokens, most = self.random.randint(1, 200), self.random.randint(1, 60)
            self.attempts[request] = 0, bench.place(request, tokens, max_tokens=most)
        elif kind == "own" and request <= 10:
            tokens, most = self.random.randint(1, 40), self.random.randint(1, 40)
            self.attempts[request] = at, bench.place(request, tokens, at=at, group=0, max_tokens=most)
        elif kind == "crash" and bench.has_engine(at):
            bench.supervisors[at].crash(signal=self.random.choice((9, 9, 11)))
        elif kind == "hang" and bench.has_engine(at):
            bench.supervisors[at].engine.is_stuck = True
        elif kind == "cancel" and self.attempts:
            self.cancel(self.random.choice(list(self.attempts)))
        elif kind == "reset":
            one, other = self.random.sample(bench.addresses, 2)
            if bench.world.is_connected(one, other):
                bench.world.disconnect(one, other)
        elif kind == "order":
            rest = [address for address in bench.addresses[1:] if self.random.random() < 0.8]
            bench.order(bench.leader, *rest)

    def cancel(self, request: int) -> None:
        at, attempt = self.attempts[request]
        if not attempt.is_over:
            self.cancelled.add(request)
            dispatcher = self.bench.dispatchers[self.bench.addresses[at]]
            self.bench.world.post(dispatcher.address, self.bench.addresses[at], Cancel(request, attempt.place.attempt))

    def again(self) -> None:
        """Place anew what was returned or refused, with all tokens that are known."""
        for request, (at, attempt) in self.attempts.items():
            ends = [each for each in attempt.heard if isinstance(each, Returned | Refused)]
            if request in self.cancelled or not ends:
                continue
            place, last = attempt.place, ends[-1]
            known = [*place.tokens, *attempt.tokens]
            newer = self.bench.place(
                request,
                at=at,
                known=known,
                group=place.group,
                prompt_tokens=place.prompt_tokens,
                max_tokens=place.max_tokens,
                attempt=place.attempt + 1,
                suspicion=last.suspicion if isinstance(last, Returned) else 0,
            )
            self.attempts[request] = at, newer

    def is_settled(self, request: int) -> bool:
        attempt = self.attempts[request][1]
        if request in self.cancelled:
            return any(isinstance(each, Ended) for each in attempt.heard) or attempt.is_over
        is_poison = any(isinstance(each, Poisoned) for each in attempt.heard)
        return is_poison or attempt.tokens == attempt.expected

    def settle(self) -> None:
        """Nothing happens any more."""
        self.bench.order(*self.bench.addresses)
        for _ in range(60):
            self.again()
            self.bench.run(1.0)
            if all(self.is_settled(request) for request in self.attempts):
                break
        self.bench.run(2.0)


@pytest.mark.parametrize("seed", range(5))
def test_every_request_ends_and_nothing_is_left(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(30):
        chaos.happen()
        chaos.again()
        chaos.bench.run(chaos.random.choice((0.0, 0.002, 0.01, 0.05, 0.2)))
    chaos.settle()
    assert [request for request in chaos.attempts if not chaos.is_settled(request)] == []
    chaos.bench.check_empty()
