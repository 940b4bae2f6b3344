"""Reads, writes, leases and errors of a real etcd through the client."""

import asyncio

import pytest

from dunlin.membership.errors import Compacted, EtcdError, LeaseLost
from dunlin.membership.values import KeyValue
from tests.membership.helpers import client_of


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
