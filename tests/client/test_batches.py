"""`client.batches` of both clients against a door with a fake instance."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.client import AsyncClient, Client, InvalidRequest, Unavailable, batches
from dunlin.messages.batches import LIST_BATCHES
from dunlin.wire.rpc.calls import CallFailed, stream_async, stream_blocking
from tests.client.hung_dispatcher import hung_dispatcher
from tests.services.dispatcher.doors.batches.running_batches import running_batches


def line(number: int) -> dict[str, Any]:
    body = {"prompt": "x", "max_tokens": 2}
    return {"custom_id": f"line {number}", "url": "/v1/completions", "body": body}


def test_the_blocking_client_submits_waits_and_fetches(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line(number)) + "\n" for number in range(5)) + "{\n")

    def use(client: Client) -> None:
        seen = []
        job = client.batches.create(path, window_s=90.0, metadata={"night": "7"})
        assert (job.window_s, job.metadata[0].name, job.metadata[0].value) == (90.0, "night", "7")
        ended = client.batches.wait(job.batch, poll_s=0.01, on_progress=lambda at: seen.append(at.completed))
        assert (ended.status, ended.completed, ended.failed, ended.bad_lines) == ("completed", 5, 1, 1)
        assert [(error.line, error.code) for error in ended.errors] == [(6, "invalid_json_line")]
        assert seen[-1] == 5
        assert [one["custom_id"] for one in client.batches.results(job.batch)] == [f"line {i}" for i in range(5)]
        assert [one["error"]["line"] for one in client.batches.results(job.batch, errors=True)] == [6]
        again = client.batches.create_from(job.input_file)
        assert [one.batch for one in client.batches.list(limit=1).batches] == [again.batch]
        assert client.batches.list(limit=1).more
        assert [one.batch for one in client.batches.list(after=again.batch).batches] == [job.batch]
        with pytest.raises(InvalidRequest, match="no batch"):
            client.batches.get("batch_none")
        with pytest.raises(InvalidRequest, match="cannot be cancelled any more"):
            client.batches.cancel(job.batch)

    async def test() -> None:
        async with running_batches(tmp_path / "store") as at:
            with Client(["127.0.0.1:9", at.doors.endpoint]) as client:
                client._endpoints.mark_failed("127.0.0.1:9")
                await asyncio.to_thread(use, client)

    asyncio.run(test())


def test_a_dispatcher_that_is_out_of_reach_is_not_asked_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path) as at:
            both = ["127.0.0.1:9", at.doors.endpoint]

            def use() -> None:
                with Client(both) as blocking:
                    with pytest.raises(Unavailable):
                        blocking.batches.create_from("file_none")
                    assert blocking.endpoint == at.doors.endpoint
                    with pytest.raises(InvalidRequest, match="no batch"):
                        list(blocking.batches.results("batch_none"))
                    assert blocking.endpoint == at.doors.endpoint

            await asyncio.to_thread(use)
            async with AsyncClient(both) as client:
                with pytest.raises(Unavailable):
                    await client.batches.create_from("file_none")
                assert (await client.batches.create([line(0)])).status
                with pytest.raises(InvalidRequest, match="no batch"):
                    [one async for one in client.batches.results("batch_none")]
                assert client.endpoint == at.doors.endpoint

    asyncio.run(test())


@pytest.mark.parametrize("first", [0, 1, 100], ids=["at once", "in the middle of a line", "after two parts"])
def test_what_a_dispatcher_that_is_gone_has_not_sent_comes_from_the_next(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def cut(parts: Iterator[Any]) -> Iterator[Any]:
        """The first dispatcher's stream: `first` bytes of each of two parts, cut off then."""
        for part in parts if first else ():
            yield replace(part, data=part.data[:first])
            yield replace(part, data=part.data[first : 2 * first])
            break
        raise CallFailed("UNAVAILABLE", "it is gone")

    def blocking(*asking: Any) -> Iterator[Any]:
        asked.append(asking)
        return cut(stream_blocking(*asking)) if len(asked) == 1 else stream_blocking(*asking)

    async def waiting(*asking: Any) -> AsyncGenerator[Any, None]:
        asked.append(asking)
        parts = [part async for part in stream_async(*asking)]
        for part in cut(iter(parts)) if len(asked) == 1 else parts:
            yield part

    monkeypatch.setattr(batches, "stream_blocking", blocking)
    monkeypatch.setattr(batches, "stream_async", waiting)
    ids = [f"line {number}" for number in range(3)]

    async def test() -> None:
        async with running_batches(tmp_path) as at, running_batches(tmp_path, at.etcd, runs=False) as other:
            both = [at.doors.endpoint, other.doors.endpoint]
            async with AsyncClient(both) as client:
                job = await client.batches.wait((await client.batches.create(map(line, range(3)))).batch, poll_s=0.01)
                assert [one["custom_id"] async for one in client.batches.results(job.batch)] == ids
                assert (len(asked), client.endpoint) == (2, other.doors.endpoint)
            asked.clear()
            with Client(both) as client:
                results = await asyncio.to_thread(lambda: list(client.batches.results(job.batch)))
                assert [one["custom_id"] for one in results] == ids
                assert (len(asked), client.endpoint) == (2, other.doors.endpoint)

    asyncio.run(test())


def test_results_that_no_dispatcher_sends_are_an_error() -> None:
    with Client(["127.0.0.1:9", "127.0.0.1:10"]) as client, pytest.raises(Unavailable, match=r"127\.0\.0\.1:9: "):
        list(client.batches.content("batch_none"))


def test_a_dispatcher_that_hangs_is_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with hung_dispatcher(LIST_BATCHES) as hung, running_batches(tmp_path) as at:
            both = [hung, at.doors.endpoint]
            async with AsyncClient(both) as client:
                assert (await client.batches.list()).batches == ()
            with Client(both) as blocking:
                assert (await asyncio.to_thread(blocking.batches.list)).batches == ()

    asyncio.run(test())


def test_lines_may_come_one_by_one(tmp_path: Path) -> None:
    def lines() -> Iterator[Any]:
        yield line(0)
        yield json.dumps(line(1))
        yield json.dumps(line(2)).encode() + b"\n"

    async def async_lines() -> AsyncIterator[Any]:
        for one in lines():
            yield one

    async def test() -> None:
        async with running_batches(tmp_path) as at, AsyncClient(at.doors.endpoint) as client:
            for source in (lines(), async_lines()):
                job = await client.batches.wait((await client.batches.create(source)).batch, poll_s=0.01)
                assert (job.total, job.completed) == (3, 3)
                found = [one["custom_id"] async for one in client.batches.results(job.batch)]
                assert found == ["line 0", "line 1", "line 2"]
            assert len((await client.batches.list()).batches) == 2

    asyncio.run(test())


def test_what_the_lines_raise_reaches_the_caller(tmp_path: Path) -> None:
    def lines() -> Iterator[Any]:
        yield line(0)
        raise ZeroDivisionError

    async def async_lines() -> AsyncIterator[Any]:
        for one in lines():
            yield one

    async def test() -> None:
        async with running_batches(tmp_path) as at, AsyncClient(at.doors.endpoint) as client:
            with pytest.raises(ZeroDivisionError):
                await client.batches.upload(async_lines())
            with Client(at.doors.endpoint) as blocking, pytest.raises(ZeroDivisionError):
                await asyncio.to_thread(blocking.batches.upload, lines())
            assert not at.etcd.items

    asyncio.run(test())


def test_a_refused_upload_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, batches={"max_file_bytes": 1000}) as at:
            async with AsyncClient(at.doors.endpoint) as client:
                with pytest.raises(InvalidRequest, match="more than 1000 bytes"):
                    await client.batches.upload(line(number) for number in range(100_000))
            with Client(at.doors.endpoint) as blocking, pytest.raises(InvalidRequest, match="more than 1000 bytes"):
                await asyncio.to_thread(blocking.batches.upload, (line(number) for number in range(100_000)))

    asyncio.run(test())


def test_a_dispatcher_that_is_away_keeps_no_job_from_being_created(tmp_path: Path) -> None:
    """`127.0.0.1:9` refuses every connection."""
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(line(0)) + "\n")

    def use(endpoints: list[str]) -> None:
        for source in (path, [line(0)]):
            with Client(endpoints) as client:
                assert client.batches.create(source).status == "validating"
                assert client.endpoint == endpoints[1]
        with Client(endpoints) as client:
            with pytest.raises(Unavailable):
                client.batches.create(line(0) for _ in range(2))  # it cannot be read again
            job = client.batches.create(line(0) for _ in range(2))
        with Client(endpoints) as client:
            with pytest.raises(Unavailable):
                client.batches.create_from(job.input_file)  # it may have begun
            client.batches.create_from(job.input_file)

    async def test() -> None:
        async with running_batches(tmp_path / "store", runs=False) as at:
            endpoints = ["127.0.0.1:9", at.doors.endpoint]
            await asyncio.to_thread(use, endpoints)
            async with AsyncClient(endpoints) as client:
                assert (await client.batches.create(path)).status == "validating"
            async with AsyncClient(endpoints) as client:
                with pytest.raises(Unavailable):
                    await client.batches.create(line(0) for _ in range(2))
                job = await client.batches.create(line(0) for _ in range(2))
            async with AsyncClient(endpoints) as client:
                with pytest.raises(Unavailable):
                    await client.batches.create_from(job.input_file)
                await client.batches.create_from(job.input_file)

    asyncio.run(test())
