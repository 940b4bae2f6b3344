import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dunlin.effects import Address
from dunlin.membership.auth import EtcdUser
from dunlin.membership.client import EtcdClient
from dunlin.membership.election import Election
from dunlin.membership.errors import EtcdError, TokenRefused
from dunlin.membership.members import MemberRecord, MemberWatch, register
from dunlin.membership.registration import RegistrationState
from dunlin.membership.watch import PrefixWatch, PutEvent, ResetEvent, WatchEvent
from dunlin.messages.membership import Deposed, Elected, MemberDown
from tests.membership.helpers import PrivateEtcd, demand_users, private_etcd, until

pytestmark = pytest.mark.processes

ROOT, DUNLIN = EtcdUser("root", "secret"), EtcdUser("dunlin", "hello")


@asynccontextmanager
async def guarded_etcd(data_dir: Path) -> AsyncIterator[PrivateEtcd]:
    async with private_etcd(data_dir) as etcd:
        demand_users(etcd.endpoint)
        yield etcd


@asynccontextmanager
async def client_as(etcd: PrivateEtcd, user: EtcdUser) -> AsyncIterator[EtcdClient]:
    client = EtcdClient([etcd.endpoint], user=user)
    try:
        yield client
    finally:
        await client.close()


def test_a_user_with_the_password_may_and_others_may_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded_etcd(tmp_path) as etcd:
            async with client_as(etcd, ROOT) as client:
                lease = await client.grant(10)
                await client.put("/a", b"1", lease.lease_id)
                assert await client.keep_alive(lease.lease_id) == 10
                found = await client.get("/a")
                assert found is not None
                assert found.value == b"1"
            async with client_as(etcd, EtcdUser()) as nobody:
                with pytest.raises(TokenRefused, match="does it want a user and a password"):
                    await nobody.get("/a")
            async with client_as(etcd, EtcdUser("root", "wrong")) as wrong:
                with pytest.raises(EtcdError, match="invalid user ID or password"):
                    await wrong.get("/a")
            async with client_as(etcd, DUNLIN) as guest:
                await guest.put("/dunlin/a", b"")
                with pytest.raises(EtcdError, match="permission denied"):
                    await guest.put("/a", b"2")

    asyncio.run(scenario())


def test_a_token_that_etcd_forgot_is_asked_for_again(tmp_path: Path) -> None:
    # Tokens live in a member's memory: a restart forgets them all.
    async def scenario() -> None:
        async with guarded_etcd(tmp_path) as etcd, client_as(etcd, ROOT) as client:
            seen: list[WatchEvent] = []

            async def collect() -> None:
                async for event in PrefixWatch(client, "/k/"):
                    seen.append(event)

            watching = asyncio.create_task(collect())
            await client.put("/k/n", b"1")
            await until(lambda: len(seen) > 0)
            for number in (b"2", b"3"):
                await etcd.kill()
                await etcd.restart()
                await client.get("/k/n")  # not a write: the loss of the connection may show only here
                await client.put("/k/n", number)
            await until(lambda: isinstance(seen[-1], PutEvent) and seen[-1].item.value == b"3")
            assert sum(isinstance(event, ResetEvent) for event in seen) == 1
            assert [event.item.value for event in seen if isinstance(event, PutEvent)][-2:] == [b"2", b"3"]
            watching.cancel()

    asyncio.run(scenario())


def test_a_user_of_dunlins_keys_alone_can_do_all_that_a_service_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded_etcd(tmp_path) as etcd:
            async with client_as(etcd, DUNLIN) as client:
                heard: list[object] = []

                async def listen() -> None:
                    async for message in MemberWatch(client):
                        heard.append(message)

                listening = asyncio.create_task(listen())
                record = MemberRecord("instance", "i0", "n0", "h:1", 42)
                registration = register(client, record, ttl_s=2)
                incarnation = await registration.start()
                elected: list[Elected | Deposed] = []
                election = Election(client, "/dunlin/election/test", "one", elected.append, ttl_s=2)
                election.start()
                await until(lambda: len(elected) == 1)
                await asyncio.sleep(3.0)  # longer than the leases: they are kept alive
                assert registration.state is RegistrationState.REGISTERED
                assert len(elected) == 1
                await election.stop()
                await registration.stop()
                await until(lambda: MemberDown(Address("instance", "i0", incarnation)) in heard)
                assert (await client.get_prefix("/dunlin/")).items == ()
                listening.cancel()

    asyncio.run(scenario())


def test_many_calls_at_once_ask_for_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with guarded_etcd(tmp_path) as etcd, client_as(etcd, ROOT) as client:
            asked = 0
            ask = client.connection.token._ask

            async def count(channel: object) -> object:
                nonlocal asked
                asked += 1
                return await ask(channel)  # type: ignore[arg-type]

            monkeypatch.setattr(client.connection.token, "_ask", count)
            await asyncio.gather(*(client.get(f"/{number}") for number in range(20)))
            assert asked == 1

    asyncio.run(scenario())


def test_a_user_does_no_harm_where_authentication_is_off(etcd_endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        client = EtcdClient([etcd_endpoint], user=ROOT)
        await client.put("/asked/nobody", b"")
        await client.close()

    asyncio.run(scenario())
    assert "user 'root' is not used" in caplog.text


def test_authentication_switched_on_later_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private_etcd(tmp_path) as etcd, client_as(etcd, ROOT) as client:
            await client.put("/a", b"1")
            demand_users(etcd.endpoint)
            await client.put("/a", b"2")

    asyncio.run(scenario())


def test_a_password_is_never_shown() -> None:
    assert "secret" not in repr(ROOT)
