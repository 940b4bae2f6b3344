import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from dunlin.membership import election
from dunlin.membership.client import EtcdClient
from dunlin.membership.election import Election
from dunlin.membership.lease_keeper import Clock, boot_clock_s
from dunlin.messages.membership import Deposed, Elected
from tests.membership.helpers import QUICK, client_of, private_etcd, until
from tests.membership.relay import relay_to
from tests.membership.scripted_etcd import REVISION, ScriptedEtcd, ScriptedWatch

pytestmark = pytest.mark.processes


class Candidate:
    """An election under test, with all it was told and when."""

    def __init__(self, client: EtcdClient, prefix: str, name: str, clock: Clock = boot_clock_s, ttl_s: int = 2) -> None:
        self.told: list[tuple[float, Elected | Deposed]] = []
        self.election = Election(client, prefix, name, self._hear, ttl_s=ttl_s, clock=clock)

    def _hear(self, change: Elected | Deposed) -> None:
        self.told.append((time.monotonic(), change))

    @property
    def leads(self) -> bool:
        return bool(self.told) and isinstance(self.told[-1][1], Elected)

    @property
    def epochs(self) -> list[int]:
        return [change.epoch for _, change in self.told if isinstance(change, Elected)]

    def terms(self) -> list[tuple[float, float]]:
        """When it led, from and to."""
        times = [at_s for at_s, _ in self.told]
        if self.leads:
            times.append(time.monotonic())
        return list(zip(times[::2], times[1::2], strict=True))

    def check_turns(self) -> None:
        """Every term begins with Elected and ends with Deposed of the same epoch; epochs grow."""
        for (_, begun), (_, ended) in zip(self.told[::2], self.told[1::2], strict=False):
            assert isinstance(begun, Elected)
            assert ended == Deposed(begun.epoch)
        assert self.epochs == sorted(set(self.epochs))


@asynccontextmanager
async def standing(
    client: EtcdClient, prefix: str, name: str, clock: Clock = boot_clock_s, ttl_s: int = 2
) -> AsyncIterator[Candidate]:
    one = Candidate(client, prefix, name, clock, ttl_s)
    one.election.start()
    try:
        yield one
    finally:
        await one.election.stop()
        one.check_turns()


def check_never_two(candidates: list[Candidate]) -> None:
    terms = sorted(term for one in candidates for term in one.terms())
    for earlier, later in pairwise(terms):
        assert earlier[1] <= later[0]
    epochs = [epoch for one in candidates for epoch in one.epochs]
    assert len(set(epochs)) == len(epochs)


def test_the_first_candidate_leads_and_the_epoch_is_the_create_revision_of_its_key(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, standing(client, "/el/a", "one") as one:
            await until(lambda: one.leads)
            (key,) = (await client.get_prefix("/el/a/")).items
            assert one.epochs == [key.create_revision]
            assert one.election.epoch() == key.create_revision
            assert key.value == b"one"

    asyncio.run(scenario())


async def until_candidates(client: EtcdClient, prefix: str, count: int) -> None:
    """Wait until so many stand in line."""
    async with asyncio.timeout(300):
        while len((await client.get_prefix(prefix)).items) < count:
            await asyncio.sleep(0.01)


def test_the_next_in_line_does_not_wait_for_the_lease_of_one_that_resigned(etcd_endpoint: str) -> None:
    ttl_s = 3600  # far longer than the test may take

    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, standing(client, "/el/b", "one", ttl_s=ttl_s) as one:
            await until(lambda: one.leads)
            async with (
                standing(client, "/el/b", "two", ttl_s=ttl_s) as two,
                standing(client, "/el/b", "three", ttl_s=ttl_s) as three,
            ):
                await until_candidates(client, "/el/b/", 3)
                assert (one.leads, two.leads, three.leads) == (True, False, False)
                assert two.election.epoch() is None
                await one.election.stop()
                assert one.election.epoch() is None
                await until(lambda: two.leads or three.leads)
                assert not (two.leads and three.leads)
                assert (two.epochs + three.epochs)[0] > one.epochs[0]
                check_never_two([one, two, three])

    asyncio.run(scenario())


def test_a_new_process_of_a_name_ends_the_candidacy_of_the_killed_one_and_no_other(etcd_endpoint: str) -> None:
    """Leases that would last for an hour: of a killed process of that name, and of one of another name."""
    ttl_s = 3600

    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            lease = await client.grant(ttl_s)
            await client.put("/el/k/0", b"one", lease.lease_id)
            async with standing(client, "/el/k", "two", ttl_s=ttl_s) as two:
                await until_candidates(client, "/el/k/", 2)
                await client.put("/el/k/1", b"one-too", lease.lease_id)
                async with standing(client, "/el/k", "one", ttl_s=ttl_s) as one:
                    await until(lambda: two.leads)
                    await until_candidates(client, "/el/k/", 3)
                    assert await client.get("/el/k/1") is not None
                    await client.put(
                        "/el/k/2", b"one", lease.lease_id
                    )  # younger than ours, which is not looked at again
                    assert one.election.epoch() is None
                    await two.election.stop()
                    await client.delete("/el/k/1")
                    await until(lambda: one.leads)
                    assert await client.get("/el/k/2") is not None

    asyncio.run(scenario())


def test_a_leader_cut_off_from_etcd_steps_down_before_the_other_one_leads(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with (
            relay_to(etcd_endpoint) as relay,
            client_of(relay.endpoint, timeouts=QUICK) as far,
            client_of(etcd_endpoint) as near,
            standing(far, "/el/c", "one") as one,
        ):
            await until(lambda: one.leads)
            async with standing(near, "/el/c", "two") as two:
                await until_candidates(near, "/el/c/", 2)
                relay.cut()
                await until(lambda: two.leads)
                assert not one.leads
                assert two.epochs[0] > one.epochs[0]
                relay.mend()
                await until_candidates(near, "/el/c/", 2)  # it stands again, behind the other one
                assert (one.leads, two.leads) == (False, True)
                await two.election.stop()
                await until(lambda: one.leads)
                assert one.epochs[-1] > two.epochs[0]
                check_never_two([one, two])

    asyncio.run(scenario())


def test_a_leader_that_slept_knows_it_before_etcd_answers(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        slept_s = 0.0
        async with (
            client_of(etcd_endpoint) as client,
            standing(client, "/el/d", "one", lambda: boot_clock_s() + slept_s) as one,
        ):
            await until(lambda: one.leads)
            epoch = one.epochs[0]
            slept_s = 1.0
            assert one.election.epoch() == epoch
            slept_s = 5.0
            # No await in between: as after a SIGCONT, when other callbacks run first.
            assert one.election.epoch() is None
            assert one.told[-1][1] == Deposed(epoch)
            await until(lambda: one.leads)
            assert one.epochs[-1] > epoch

    asyncio.run(scenario())


def test_a_leader_whose_key_was_deleted_steps_down_and_stands_again(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, standing(client, "/el/e", "one") as one:
            await until(lambda: one.leads)
            (key,) = (await client.get_prefix("/el/e/")).items
            await client.delete(key.key)
            await until(lambda: len(one.epochs) == 2 and one.leads)
            assert one.epochs[1] > one.epochs[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_while_etcd_is_away_none_leads_and_then_exactly_one(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with (
            private_etcd(tmp_path) as etcd,
            client_of(etcd.endpoint, timeouts=QUICK) as client,
            standing(client, "/el/f", "one") as one,
            standing(client, "/el/f", "two") as two,
        ):
            await until(lambda: one.leads or two.leads)
            if how == "killed":
                await etcd.kill()
                await until(lambda: not one.leads and not two.leads)
                await etcd.restart()
            else:
                await etcd.pause(3.0)
            await until(lambda: len(one.epochs + two.epochs) > 1 and (one.leads or two.leads))
            assert max(one.epochs + two.epochs) > min(one.epochs + two.epochs)
            check_never_two([one, two])

    asyncio.run(scenario())


def test_after_etcd_was_away_no_wait_for_the_leases_of_managers_that_live(tmp_path: Path) -> None:
    ttl_s = 3600  # far longer than the test may take

    async def scenario() -> None:
        later_s = 0.0
        async with (
            private_etcd(tmp_path) as etcd,
            client_of(etcd.endpoint, timeouts=QUICK) as client,
            standing(client, "/el/g", "one", lambda: boot_clock_s() + later_s, ttl_s) as one,
        ):
            await until(lambda: one.leads)
            async with standing(client, "/el/g", "two", ttl_s=ttl_s) as two:
                await until_candidates(client, "/el/g/", 2)
                await etcd.kill()
                later_s = ttl_s + 1.0  # it was away for longer than the lease of the leader
                assert one.election.epoch() is None
                await etcd.restart()
                # etcd gives every lease that it finds its whole TTL again: the old leader ends its own.
                await until(lambda: two.leads)
                check_never_two([one, two])
                await until_candidates(client, "/el/g/", 2)
                await two.election.stop()
                await until(lambda: one.leads)
                assert len((await client.get_prefix("/el/g/")).items) == 1

    asyncio.run(scenario())


def test_a_candidacy_that_was_deposed_does_not_lead_again_when_its_lease_turns_out_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election, "PrefixWatch", ScriptedWatch)

    async def scenario() -> None:
        slept_s, etcd = 0.0, ScriptedEtcd()
        async with standing(etcd, "/el/f", "one", lambda: boot_clock_s() + slept_s, ttl_s=600) as one:
            await until(lambda: etcd.leases == 1)
            etcd.show("/el/f")
            await until(lambda: one.leads)
            slept_s = 3600.0
            assert one.election.epoch() is None
            slept_s = 0.0  # a sign of life was on its way
            etcd.show("/el/f")  # its key stands, and the watch says so before the candidacy has ended
            await until(lambda: etcd.leases == 2)
            assert one.told[1:] == [(one.told[1][0], Deposed(REVISION))]

    asyncio.run(scenario())
