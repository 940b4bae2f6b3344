import asyncio

import pytest

from dunlin.membership.connection import Timeouts
from dunlin.membership.errors import Compacted, EtcdError, EtcdUnavailable, LeaseLost
from dunlin.membership.txn import CreatedAt, DeleteOp, GetOp, ModifiedAt, PutOp, ValueIs
from dunlin.membership.values import KeyValue, key_bytes, key_text, prefix_end
from tests.membership.helpers import QUICK, client_of
from tests.membership.relay import relay_to

DEAD = "127.0.0.1:1"


def test_keys_are_written_read_and_deleted(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            assert await client.get("/kv/a") is None
            first = await client.put("/kv/a", b"one")
            second = await client.put("/kv/a", b"\x00two")
            assert second == first + 1
            assert await client.get("/kv/a") == KeyValue("/kv/a", b"\x00two", first, second)
            assert await client.delete("/kv/a")
            assert not await client.delete("/kv/a")
            assert await client.get("/kv/a") is None

    asyncio.run(scenario())


def test_a_prefix_is_one_consistent_ordered_view(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            for name in ("b", "a", "c"):
                last = await client.put(f"/prefix/x/{name}", name.encode())
            await client.put("/prefix/x", b"no slash")
            outside = await client.put("/prefix/y", b"outside")
            snapshot = await client.get_prefix("/prefix/x/")
            assert [item.key for item in snapshot.items] == ["/prefix/x/a", "/prefix/x/b", "/prefix/x/c"]
            assert last < outside <= snapshot.revision

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("a", b"b"), ("/m/", b"/m0"), ("", b"\0"), (key_text(b"a\xff"), b"b"), (key_text(b"\xff"), b"\0")],
)
def test_prefix_end(prefix: str, end: bytes) -> None:
    assert prefix_end(prefix) == end


def test_keys_of_any_bytes_survive_as_text() -> None:
    assert key_bytes(key_text(b"/a\xff\xfe/\xc3\xa4")) == b"/a\xff\xfe/\xc3\xa4"


def test_transactions_compare_revisions_and_values(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            key = "/txn/a"
            made = await client.txn([CreatedAt(key, 0)], [PutOp(key, b"one")])
            assert made.succeeded
            refused = await client.txn(
                [CreatedAt(key, 0)], [PutOp(key, b"two")], [GetOp(key), GetOp("/txn/", prefix=True)]
            )
            assert not refused.succeeded
            assert refused.reads == ((KeyValue(key, b"one", made.revision, made.revision),),) * 2
            changed = await client.txn([ModifiedAt(key, made.revision), ValueIs(key, b"one")], [PutOp(key, b"two")])
            assert changed.succeeded
            assert not (await client.txn([ModifiedAt(key, made.revision)], [DeleteOp(key)])).succeeded
            assert not (await client.txn([ValueIs(key, b"one")], [DeleteOp(key)])).succeeded
            assert (await client.txn([CreatedAt(key, made.revision), ValueIs(key, b"two")], [DeleteOp(key)])).succeeded
            assert await client.get(key) is None

    asyncio.run(scenario())


def test_a_lease_takes_its_keys_with_it(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            lease = await client.grant(30)
            assert lease.ttl_s == 30.0
            await client.put("/lease/a", b"", lease.lease_id)
            held = await client.get("/lease/a")
            assert held is not None
            assert held.lease_id == lease.lease_id
            assert await client.keep_alive(lease.lease_id) == 30.0
            assert 28 <= await client.time_to_live(lease.lease_id) <= 30
            await client.revoke(lease.lease_id)
            assert await client.get("/lease/a") is None

    asyncio.run(scenario())


def test_a_lost_lease_says_so(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            for call in (client.keep_alive(77), client.time_to_live(77), client.revoke(77), client.put("/l", b"", 77)):
                with pytest.raises(LeaseLost):
                    await call

    asyncio.run(scenario())


def test_errors_of_etcd_keep_their_text(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            with pytest.raises(EtcdError, match="key is not provided"):
                await client.put("", b"")
            with pytest.raises(EtcdError, match="future revision"):
                await client.compact(1 << 40)
            with pytest.raises(Compacted):
                await client.compact(-1)

    asyncio.run(scenario())


def test_unreachable_names_every_endpoint() -> None:
    async def scenario() -> None:
        async with client_of(DEAD, "127.0.0.1:2", timeouts=Timeouts(0.2, 0.2)) as client:
            for call in (client.get("a"), client.put("a", b""), client.keep_alive(1)):
                with pytest.raises(EtcdUnavailable, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
                    await call

    asyncio.run(scenario())


def test_reads_and_writes_pass_over_a_dead_endpoint(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(DEAD, etcd_endpoint, timeouts=Timeouts(0.2, 2.0)) as client:
            await client.put("/over/a", b"1")
            assert client.connection.current == etcd_endpoint
        async with client_of(DEAD, etcd_endpoint, timeouts=Timeouts(0.2, 2.0)) as client:
            assert await client.get("/over/a") is not None

    asyncio.run(scenario())


async def _listen_without_a_word() -> asyncio.Server:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()  # from Python 3.12 on the server's end waits for it

    return await asyncio.start_server(silent, "127.0.0.1", 0)


def test_an_endpoint_that_accepts_and_stays_silent_is_passed_over(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with await _listen_without_a_word() as server:
            silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(silent, etcd_endpoint, timeouts=Timeouts(0.3, 1.0)) as client:
                await client.put("/silent/a", b"1")
                assert client.connection.current == etcd_endpoint

    asyncio.run(scenario())


def test_the_client_comes_back_when_the_connection_does(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with relay_to(etcd_endpoint) as relay, client_of(relay.endpoint, timeouts=QUICK) as client:
            await client.put("/back/a", b"1")
            relay.cut()
            with pytest.raises(EtcdUnavailable):
                await client.get("/back/a")
            relay.mend()
            assert await client.get("/back/a") is not None

    asyncio.run(scenario())


def test_cancelling_a_call_cancels_the_task() -> None:
    async def scenario() -> None:
        async with client_of(DEAD, timeouts=Timeouts(30.0, 30.0)) as client:
            task = asyncio.create_task(client.put("a", b""))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
