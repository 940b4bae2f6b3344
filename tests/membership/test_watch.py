import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import Timeouts
from dunlin.membership.errors import EtcdUnavailable
from dunlin.membership.watch import DeletedEvent, PrefixWatch, PutEvent, ResetEvent, WatchEvent
from tests.membership.helpers import QUICK, PrivateEtcd, client_of, private_etcd, until
from tests.membership.relay import relay_to

pytestmark = pytest.mark.processes

COUNTER = "/count/n"


@asynccontextmanager
async def watching(client: EtcdClient, prefix: str) -> AsyncIterator[list[WatchEvent]]:
    """The events of a watch, as they come; the first one is there."""
    seen: list[WatchEvent] = []

    async def collect() -> None:
        async for event in PrefixWatch(client, prefix):
            seen.append(event)

    task = asyncio.create_task(collect())
    try:
        await until(lambda: bool(seen))
        yield seen
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.wait([task])


async def count(client: EtcdClient, numbers: range) -> None:
    """Write each number once, in order. A write with a lost answer is looked up, not guessed."""
    for number in numbers:
        while not await _written(client, number):
            await asyncio.sleep(0.02)


async def _written(client: EtcdClient, number: int) -> bool:
    try:
        now = await client.get(COUNTER)
        if now is None or now.value != b"%d" % number:
            await client.put(COUNTER, b"%d" % number)
        return True
    except EtcdUnavailable:
        return False


def numbers_between_resets(seen: list[WatchEvent]) -> list[list[int]]:
    """Per reset: the number in its snapshot, then those that were put."""
    runs: list[list[int]] = []
    for event in seen:
        match event:
            case ResetEvent():
                runs.append([int(item.value) for item in event.items])
            case PutEvent():
                runs[-1].append(int(event.item.value))
    return runs


def has(seen: list[WatchEvent], number: int) -> bool:
    return any(isinstance(event, PutEvent) and event.item.value == b"%d" % number for event in seen)


def test_a_watch_tells_the_snapshot_then_every_change(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            before = await client.put("/w/a", b"1")
            async with watching(client, "/w/") as seen:
                revision = await client.put("/w/a", b"2")
                await client.put("/other", b"")
                await client.delete("/w/a")
                await until(lambda: len(seen) == 3)
                reset, put, deleted = seen
                assert isinstance(reset, ResetEvent)
                assert [(item.key, item.value, item.mod_revision) for item in reset.items] == [("/w/a", b"1", before)]
                assert isinstance(put, PutEvent)
                assert (put.item.value, put.item.create_revision, put.item.mod_revision) == (b"2", before, revision)
                assert deleted == DeletedEvent("/w/a", revision + 2)

    asyncio.run(scenario())


def test_several_changes_of_one_revision_all_come(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client, watching(client, "/many/") as seen:
            lease = await client.grant(30)
            for name in "abc":
                await client.put(f"/many/{name}", b"", lease.lease_id)
            await client.revoke(lease.lease_id)
            await until(lambda: len(seen) == 7)
            deleted = [event for event in seen if isinstance(event, DeletedEvent)]
            assert sorted(event.key for event in deleted) == ["/many/a", "/many/b", "/many/c"]
            assert len({event.mod_revision for event in deleted}) == 1

    asyncio.run(scenario())


async def _killed_and_restarted(etcd: PrivateEtcd) -> None:
    await etcd.kill()
    await asyncio.sleep(0.3)
    await etcd.restart()


async def _paused(etcd: PrivateEtcd) -> None:
    await etcd.pause(2.5)


def _count_through(
    data_dir: Path, trouble: Callable[[PrivateEtcd], Awaitable[None]], numbers: range
) -> list[list[int]]:
    async def scenario() -> list[list[int]]:
        async with (
            private_etcd(data_dir) as etcd,
            client_of(etcd.endpoint, timeouts=QUICK) as reader,
            client_of(etcd.endpoint, timeouts=Timeouts()) as writer,
            watching(reader, "/count/") as seen,
        ):
            counting = asyncio.create_task(count(writer, numbers))
            await until(lambda: has(seen, numbers[len(numbers) // 3]))
            assert not counting.done()
            await trouble(etcd)
            await counting
            await until(lambda: has(seen, numbers[-1]))
            return numbers_between_resets(seen)

    return asyncio.run(scenario())


def test_nothing_is_missed_or_doubled_when_etcd_is_killed(tmp_path: Path) -> None:
    assert _count_through(tmp_path, _killed_and_restarted, range(300)) == [list(range(300))]


def test_nothing_is_missed_or_doubled_when_etcd_is_paused(tmp_path: Path) -> None:
    assert _count_through(tmp_path, _paused, range(300)) == [list(range(300))]


def test_a_cut_watch_resumes_and_a_compacted_one_starts_over_once(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with (
            client_of(etcd_endpoint) as writer,
            relay_to(etcd_endpoint) as relay,
            client_of(relay.endpoint, timeouts=QUICK) as reader,
            watching(reader, "/count/") as seen,
        ):
            await count(writer, range(100))
            await until(lambda: has(seen, 99))
            relay.cut()
            await count(writer, range(100, 150))
            relay.mend()
            await count(writer, range(150, 200))
            await until(lambda: has(seen, 199))
            relay.cut()
            await count(writer, range(200, 250))
            await writer.compact(await writer.put("/elsewhere", b""))
            relay.mend()
            await until(lambda: sum(isinstance(event, ResetEvent) for event in seen) > 1)
            await count(writer, range(250, 300))
            await until(lambda: has(seen, 299))
            # Compacted events are gone for good: 200 to 248 were never seen, 249 came with the snapshot.
            assert numbers_between_resets(seen) == [list(range(200)), list(range(249, 300))]

    asyncio.run(scenario())


def test_an_etcd_that_came_back_empty_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            private_etcd(tmp_path / "old") as etcd,
            client_of(etcd.endpoint, timeouts=QUICK) as client,
            watching(client, "/count/") as seen,
        ):
            await count(client, range(20))
            await until(lambda: has(seen, 19))
            await etcd.kill()
            (tmp_path / "old" / "etcd").rename(tmp_path / "lost")
            await etcd.restart()
            await until(lambda: len(numbers_between_resets(seen)) == 2)
            assert numbers_between_resets(seen)[1] == []
            await count(client, range(100, 103))
            await until(lambda: has(seen, 102))
            assert numbers_between_resets(seen)[1] == [100, 101, 102]

    asyncio.run(scenario())


def test_a_watch_waits_for_an_etcd_that_is_not_there_yet(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with relay_to(etcd_endpoint) as relay, client_of(relay.endpoint, timeouts=QUICK) as client:
            relay.cut()
            watch = PrefixWatch(client, "/late/")
            first = asyncio.ensure_future(anext(aiter(watch)))
            await asyncio.sleep(1.0)
            assert not first.done()
            assert not watch.connected
            relay.mend()
            assert isinstance(await asyncio.wait_for(first, 300), ResetEvent)

    asyncio.run(scenario())


def test_a_cancelled_watch_leaves_no_task_behind(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            before = asyncio.all_tasks()
            watch = PrefixWatch(client, "/gone/")

            async def follow() -> None:
                async for _ in watch:
                    pass

            task = asyncio.create_task(follow())
            await until(lambda: watch.connected)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not watch.connected
            await until(lambda: asyncio.all_tasks() <= before)

    asyncio.run(scenario())
