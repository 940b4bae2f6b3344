import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdError, EtcdUnavailable
from dunlin.membership.registration import Registration, RegistrationState
from dunlin.membership.values import KeyValue
from tests.membership.helpers import QUICK, client_of, private_etcd, until
from tests.membership.relay import Relay, relay_to

pytestmark = pytest.mark.processes

REGISTERED, DEGRADED = RegistrationState.REGISTERED, RegistrationState.DEGRADED
SUPERSEDED, STOPPED = RegistrationState.SUPERSEDED, RegistrationState.STOPPED


def value_for(incarnation: int) -> bytes:
    return json.dumps({"who": "test", "incarnation": incarnation}).encode()


def incarnation_of(value: bytes) -> int | None:
    try:
        return int(json.loads(value)["incarnation"])
    except ValueError:
        return None


class Registered:
    """A registration under test, with the states it went through."""

    def __init__(self, client: EtcdClient, key: str, ttl_s: int = 3) -> None:
        self.states: list[RegistrationState] = []
        self.registration = Registration(
            client, key, value_for, incarnation_of, ttl_s=ttl_s, on_state=lambda state, _: self.states.append(state)
        )


@asynccontextmanager
async def registered(client: EtcdClient, key: str, ttl_s: int = 3) -> AsyncIterator[Registered]:
    one = Registered(client, key, ttl_s)
    await one.registration.start()
    try:
        yield one
    finally:
        await one.registration.stop()


@asynccontextmanager
async def registered_afar(etcd_endpoint: str, key: str) -> AsyncIterator[tuple[Relay, Registered]]:
    """One whose way to etcd can be cut."""
    async with (
        relay_to(etcd_endpoint) as relay,
        client_of(relay.endpoint, timeouts=QUICK) as far,
        registered(far, key) as one,
    ):
        yield relay, one


async def stored(client: EtcdClient, key: str) -> KeyValue:
    item = await client.get(key)
    assert item is not None
    return item


async def stored_again(client: EtcdClient, before: KeyValue) -> KeyValue:
    """The key under another lease than before, as soon as it is there."""
    async with asyncio.timeout(300):
        while (item := await client.get(before.key)) is None or item.lease_id == before.lease_id:
            await asyncio.sleep(0.01)
        return item


def test_the_incarnation_is_the_revision_of_the_first_write_and_stands_in_the_value(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered(client, "/reg/a", ttl_s=60) as one:
            item = await stored(client, "/reg/a")
            assert one.registration.incarnation == item.create_revision
            assert item.value == value_for(item.create_revision)
            assert item.lease_id != 0
            await one.registration.stop()
            assert await client.get("/reg/a") is None
            assert one.states == [REGISTERED, STOPPED]

    asyncio.run(scenario())


def test_a_registration_outlives_its_ttl(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered(client, "/reg/b", ttl_s=5) as one:
            before = await stored(client, "/reg/b")
            await asyncio.sleep(7.0)
            assert await stored(client, "/reg/b") == before
            assert one.states == [REGISTERED]

    asyncio.run(scenario())


def test_a_deleted_key_and_a_revoked_lease_come_back_with_the_same_value(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered(client, "/reg/c") as one:
            first = await stored(client, "/reg/c")
            await client.delete("/reg/c")
            second = await stored_again(client, first)
            await client.revoke(second.lease_id)
            third = await stored_again(client, second)
            await until(lambda: len(one.states) >= 5)  # and more, where a slow etcd puts the lease in doubt once again
            assert one.states[:5] == [REGISTERED, DEGRADED, REGISTERED, DEGRADED, REGISTERED]
            assert first.value == second.value == third.value
            assert len({first.lease_id, second.lease_id, third.lease_id}) == 3

    asyncio.run(scenario())


def test_the_younger_process_of_a_name_wins_and_the_older_one_stays_away(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered(client, "/reg/d") as older:
            async with registered(client, "/reg/d") as younger:
                assert younger.registration.incarnation > older.registration.incarnation
                await until(lambda: SUPERSEDED in older.states)
                item = await stored(client, "/reg/d")
                await older.registration.stop()
                assert await stored(client, "/reg/d") == item
                assert item.value == value_for(younger.registration.incarnation)
                assert younger.states == [REGISTERED]
            assert older.registration.state is SUPERSEDED

    asyncio.run(scenario())


def test_an_older_process_that_lost_its_lease_does_not_take_the_name_back(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered_afar(etcd_endpoint, "/reg/e") as (relay, older):
            relay.cut()
            await until(lambda: older.registration.state is DEGRADED)
            async with registered(client, "/reg/e") as younger:
                relay.mend()
                await until(lambda: older.registration.state is SUPERSEDED)
                assert (await stored(client, "/reg/e")).value == value_for(younger.registration.incarnation)

    asyncio.run(scenario())


def test_a_younger_process_takes_its_name_back_from_an_older_one_that_awoke_meanwhile(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered_afar(etcd_endpoint, "/reg/back") as (to_older, older):
            to_older.cut()
            await until(lambda: older.registration.state is DEGRADED)
            async with registered_afar(etcd_endpoint, "/reg/back") as (to_younger, younger):
                to_younger.cut()
                while await client.get("/reg/back"):
                    await asyncio.sleep(0.1)
                to_older.mend()
                await until(lambda: older.registration.state is REGISTERED)
                assert (await stored(client, "/reg/back")).value == value_for(older.registration.incarnation)
                to_younger.mend()
                await until(lambda: older.registration.state is SUPERSEDED)
                assert (await stored(client, "/reg/back")).value == value_for(younger.registration.incarnation)
                await until(lambda: younger.registration.state is REGISTERED)
                assert SUPERSEDED not in younger.states

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [value_for(0), b"not a record", value_for(2**62)])
def test_a_key_that_no_older_process_wrote_is_left_alone(etcd_endpoint: str, value: bytes) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, registered(client, "/reg/foreign") as one:
            await client.put("/reg/foreign", value)
            await until(lambda: one.registration.state is SUPERSEDED)
            assert (await stored(client, "/reg/foreign")).value == value
            await client.delete("/reg/foreign")

    asyncio.run(scenario())


def test_etcd_away_degrades_and_the_registration_returns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            private_etcd(tmp_path) as etcd,
            client_of(etcd.endpoint, timeouts=QUICK) as client,
            registered(client, "/reg/f") as one,
        ):
            item = await stored(client, "/reg/f")
            await etcd.kill()
            await until(lambda: one.states[-1] is DEGRADED)
            await etcd.restart()
            await until(lambda: one.states[-1] is REGISTERED)
            assert one.states[:3] == [REGISTERED, DEGRADED, REGISTERED]
            assert (await stored(client, "/reg/f")).value == item.value

    asyncio.run(scenario())


def test_a_first_registration_waits_for_etcd_and_gives_up_with_a_clear_error(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with relay_to(etcd_endpoint) as relay, client_of(relay.endpoint, timeouts=QUICK) as client:
            relay.cut()
            with pytest.raises(EtcdUnavailable, match=f"could not register /reg/g within 3 s: .*{relay.endpoint}"):
                await Registered(client, "/reg/g").registration.start(within_s=3.0)
            starting = asyncio.create_task(Registered(client, "/reg/g").registration.start(within_s=300.0))
            await asyncio.sleep(0.5)
            assert not starting.done()
            relay.mend()
            assert await starting > 0

    asyncio.run(scenario())


PAUSED = """
import asyncio, sys
from dunlin.membership.client import EtcdClient
from dunlin.membership.registration import Registration

async def main(endpoint, key):
    value_for = lambda incarnation: b"paused %d" % incarnation
    tell = lambda state, why: print(state.value, flush=True)
    registration = Registration(EtcdClient([endpoint]), key, value_for, lambda value: None, ttl_s=2, on_state=tell)
    await registration.start()
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_process_that_slept_through_its_lease_returns_with_the_same_incarnation(
    etcd_endpoint: str, root: Path
) -> None:
    async def scenario() -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PAUSED, etcd_endpoint, "/reg/h", cwd=root, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            async with client_of(etcd_endpoint) as client:
                assert await child.stdout.readline() == b"registered\n"
                before = await stored(client, "/reg/h")
                assert before.value == b"paused %d" % before.create_revision
                os.kill(child.pid, signal.SIGSTOP)
                while await client.get("/reg/h"):
                    await asyncio.sleep(0.1)
                os.kill(child.pid, signal.SIGCONT)
                assert await child.stdout.readline() == b"degraded\n"
                assert await child.stdout.readline() == b"registered\n"
                after = await stored(client, "/reg/h")
                assert after.value == before.value
                assert after.create_revision > before.create_revision
                assert after.lease_id != before.lease_id
        finally:
            child.kill()
            await child.wait()

    asyncio.run(scenario())


class BlindClient(EtcdClient):
    """Cannot read a key by itself: that a lease is lost is heard from the lease alone."""

    async def get(self, key: str) -> KeyValue | None:
        raise EtcdUnavailable("no reads")


def test_an_older_process_that_writes_its_record_again_finds_the_name_taken(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        blind = BlindClient([etcd_endpoint])
        async with client_of(etcd_endpoint) as client, registered(blind, "/reg/again") as older:
            await client.revoke((await stored(client, "/reg/again")).lease_id)
            async with registered(client, "/reg/again", ttl_s=600) as younger:
                await until(lambda: older.registration.state is SUPERSEDED)
                assert DEGRADED in older.states
                assert (await stored(client, "/reg/again")).value == value_for(younger.registration.incarnation)
        await blind.close()

    asyncio.run(scenario())


class OvertakenClient(EtcdClient):
    """Another process of the same name registers between this one's first write and its second."""

    def __init__(self, endpoint: str, other: EtcdClient) -> None:
        super().__init__([endpoint])
        self._other = other

    async def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
        revision = await super().put(key, value, lease_id)
        await self._other.put(key, b"the other")
        return revision


def test_of_two_that_register_at_once_the_later_writer_has_the_name(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            overtaken = OvertakenClient(etcd_endpoint, client)
            with pytest.raises(EtcdError, match="another one of that name"):
                await Registered(overtaken, "/reg/both").registration.start()
            assert (await stored(client, "/reg/both")).value == b"the other"
            await overtaken.close()

    asyncio.run(scenario())
