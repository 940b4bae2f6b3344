import asyncio

import pytest

from dunlin.membership.client import EtcdClient, Lease
from dunlin.membership.errors import EtcdUnavailable, LeaseLost
from dunlin.membership.lease_keeper import LeaseKeeper


class Clock:
    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class FakeClient(EtcdClient):
    """Answers a sign of life `answer_after_s` later on the clock, or raises what `failure` says."""

    def __init__(self, clock: Clock, answer_after_s: float = 0.0) -> None:
        super().__init__(["127.0.0.1:1"])
        self.clock = clock
        self.answer_after_s = answer_after_s
        self.failure: Exception | None = None

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> float:
        self.clock.now_s += self.answer_after_s
        if self.failure is not None:
            raise self.failure
        return 10.0


def keeper(clock: Clock, client: FakeClient, sent_s: float | None = None) -> LeaseKeeper:
    return LeaseKeeper(client, Lease(7, 10.0), clock.now_s if sent_s is None else sent_s, clock)


def test_a_lease_holds_for_its_ttl_less_the_drift_since_it_was_asked_for() -> None:
    clock = Clock(100.0)
    held = keeper(clock, FakeClient(clock), sent_s=99.0)
    assert held.valid_until_s == pytest.approx(108.8)
    clock.now_s = 108.7
    assert held.is_valid()
    clock.now_s = 108.9
    assert not held.is_valid()


def test_validity_counts_from_the_sending_of_a_sign_of_life_not_from_its_answer() -> None:
    clock = Clock(100.0)
    held = keeper(clock, FakeClient(clock, answer_after_s=3.0))
    clock.now_s = 102.0
    asyncio.run(held.extend())
    assert clock.now_s == 105.0
    assert held.valid_until_s == pytest.approx(111.8)


def test_silence_extends_nothing_and_loss_ends_it_at_once() -> None:
    clock = Clock(100.0)
    client = FakeClient(clock)
    held = keeper(clock, client)
    client.failure = EtcdUnavailable("away")
    with pytest.raises(EtcdUnavailable):
        asyncio.run(held.extend())
    assert held.valid_until_s == pytest.approx(109.8)
    client.failure = LeaseLost("gone")
    assert asyncio.run(held.keep_alive()) == "gone"
    assert not held.is_valid()
