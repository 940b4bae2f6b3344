"""OpenAI's client and gRPC's against both doors with a fake instance: files, jobs, results, ends of every kind."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from dunlin.auth.tenants import Tenant, hash_key
from dunlin.membership.errors import EtcdUnavailable
from dunlin.messages.door import Quota
from dunlin.messages.types import RequestClass
from services.dispatcher.batches.content_store import ContentStore
from services.dispatcher.batches.job_store import PREFIX
from services.dispatcher.batches.results_check import broken_results
from services.dispatcher.doors.batches import job_run
from services.dispatcher.doors.http import connections, parse_turns
from services.dispatcher.doors.http.batches import BatchRoutes
from services.dispatcher.doors.http.config import HttpConfig
from services.dispatcher.doors.openai.openapi import openapi_document
from tests.fakes.memory_etcd import MemoryEtcd
from tests.services.dispatcher.doors.batches.running_batches import running_batches
from tests.services.dispatcher.raw_http import LOOPS, Loop


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"model": "builtin:tiny", "prompt": "x", "max_tokens": 3, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def content(lines: list[Any]) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


async def begin(client: openai.AsyncOpenAI, data: bytes, window: Any = "24h", **given: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window=window, **given
    )


async def until(client: openai.AsyncOpenAI, batch: Batch, holds: Callable[[Batch], bool]) -> Batch:
    while not holds(batch):
        await asyncio.sleep(0.01)
        batch = await client.batches.retrieve(batch.id)
    return batch


async def ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    return await until(client, batch, lambda one: one.status not in ("validating", "in_progress", "cancelling"))


async def results(client: openai.AsyncOpenAI, batch: Batch) -> tuple[list[bytes], list[bytes]]:
    output, errors = [
        (await client.files.content(file)).content.splitlines(keepends=True) if file else []
        for file in (batch.output_file_id, batch.error_file_id)
    ]
    return output, errors


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_openais_client_gets_every_line(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, batches={"segment_lines": 4, "lines_in_flight": 3}) as at:
            client = at.client()
            data = content([line(f"line {i}", max_tokens=i % 5 + 1) for i in range(30)])
            batch = await begin(client, data, metadata={"night": "7"})
            assert (batch.status, batch.metadata, batch.completion_window) == ("validating", {"night": "7"}, "24h")
            assert batch.expires_at == batch.created_at + 86_400
            batch = await ended(client, batch)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
            assert batch.error_file_id is None
            assert batch.usage is not None
            assert batch.usage.output_tokens == sum(i % 5 + 1 for i in range(30))
            assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
            output, errors = await results(client, batch)
            assert broken_results(data.splitlines(), output, errors) == []
            answers = [json.loads(one) for one in output]
            assert [one["custom_id"] for one in answers] == [f"line {i}" for i in range(30)]
            for i, one in enumerate(answers):
                assert one["error"] is None
                response = one["response"]
                assert response["status_code"] == 200
                assert response["body"]["choices"][0]["text"] == at.doors.text(i % 5 + 1)
                assert response["request_id"] == response["body"]["id"]
            assert {place.request_class for place in at.doors.instance.placed} == {RequestClass.BATCH}
            file = await client.files.retrieve(batch.output_file_id or "")
            assert (file.bytes, file.purpose) == (len(b"".join(output)), "batch_output")

    asyncio.run(test())


def test_files_are_listed_fetched_and_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            client = at.client()
            data = content([line("a")]) * 10_000
            first = await client.files.create(file=("one.jsonl", data), purpose="batch")
            second = await client.files.create(file=("two.jsonl", b"{}"), purpose="batch")
            assert (first.bytes, first.filename, first.purpose) == (len(data), "one.jsonl", "batch")
            assert {file.id for file in (await client.files.list()).data} == {first.id, second.id}
            assert (await client.files.content(first.id)).content == data
            assert (await client.files.delete(second.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve(second.id)
            batch = await client.batches.create(
                input_file_id=first.id, endpoint="/v1/completions", completion_window="24h"
            )
            with pytest.raises(openai.BadRequestError, match=r"cancel it first"):
                await client.files.delete(first.id)
            assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
            with pytest.raises(openai.BadRequestError):
                await client.files.create(file=("x", b"{}"), purpose="fine-tune")
            assert len((await client.files.list()).data) == 1

    asyncio.run(test())


@pytest.mark.parametrize("of_results", [False, True])
def test_what_a_store_away_did_not_delete_is_deleted_by_the_next_try(tmp_path: Path, of_results: bool) -> None:
    """Etcd, and then the store of content, is away at the first try."""

    async def test() -> None:
        async with running_batches(tmp_path, batches={"segment_lines": 1}) as at:
            client, etcd, contents = at.client(), at.etcd, at.jobs.service._contents
            batch = await ended(client, await begin(client, content([line(f"{i}") for i in range(120)])))
            file = (batch.output_file_id or "") if of_results else batch.input_file_id
            with pytest.MonkeyPatch.context() as away:
                answers = iter((etcd.txn,))

                async def first_alone(*arguments: Any) -> Any:
                    return await next(answers, _away)(*arguments)

                away.setattr(etcd, "txn", first_alone)  # a job's segments take more than one
                away.setattr(etcd, "delete", _away)
                with pytest.raises(openai.InternalServerError, match="away"):
                    await client.files.delete(file)
                away.setattr(contents, "remove", _full_disk)
                with pytest.raises(openai.InternalServerError, match="full"):
                    await client.files.delete(file)
            assert (await client.files.delete(file)).deleted
            left_over = [path for path in files_in(tmp_path) if (path.parent.name == "files") != of_results]
            assert left_over == []
            part = "segments/" if of_results else "files/"
            assert [key for key in etcd.items if key.startswith(f"{PREFIX}{part}")] == []

    asyncio.run(test())


async def _away(*arguments: Any) -> Any:
    raise EtcdUnavailable("away")


async def _full_disk(name: str) -> None:
    raise OSError(f"{name}: the disk is full")


def test_a_file_may_come_byte_by_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SLICE_BYTES", 1)
    monkeypatch.setattr(parse_turns, "PARSE_BUDGET_S", 1e-9)  # one slice a turn

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            file = await at.client().files.create(file=("one.jsonl", b"{}\n"), purpose="batch")
            assert (file.bytes, file.purpose) == (3, "batch")

    asyncio.run(test())


BAD = [
    (b"{", "invalid_json_line"),
    (json.dumps({**line("bad url"), "url": "/v1/embeddings"}).encode(), "mismatched_endpoint"),
    (json.dumps(line("line 0")).encode(), "duplicate_custom_id"),
]


def test_bad_lines_are_told_by_number_and_stop_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path) as at:
            client = at.client()
            refused = [line("no such field", foo=1), line("too long", max_tokens=5000), line("streams", stream=True)]
            data = content([line("line 0"), *(text for text, _ in BAD), *refused, b"", line("line 1")])
            batch = await ended(client, await begin(client, data))
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.model_dump() == {"total": 8, "completed": 2, "failed": 6}
            assert batch.errors is not None
            assert [(one.line, one.code) for one in batch.errors.data or []] == [
                (number, code) for number, (_, code) in enumerate(BAD, start=2)
            ]
            output, errors = await results(client, batch)
            assert broken_results(data.splitlines(), output, errors) == []
            told = [json.loads(one) for one in errors]
            assert [one["error"]["line"] for one in told[:3]] == [2, 3, 4]
            assert [one["response"]["status_code"] for one in told[3:]] == [400, 400, 400]
            assert [one["response"]["body"]["error"]["param"] for one in told[3:]] == ["foo", None, "stream"]

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_a_file_without_a_line_fails(tmp_path: Path, data: bytes) -> None:
    async def test() -> None:
        async with running_batches(tmp_path) as at:
            batch = await ended(at.client(), await begin(at.client(), data))
            assert batch.status == "failed"
            assert batch.errors is not None
            assert [one.code for one in batch.errors.data or []] == ["empty_file"]

    asyncio.run(test())


def test_too_many_lines_fail(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, batches={"max_lines": 3}) as at:
            batch = await ended(at.client(), await begin(at.client(), content([line(str(i)) for i in range(4)])))
            assert batch.status == "failed"
            assert not at.doors.instance.placed

    asyncio.run(test())


@pytest.mark.parametrize("ends", ["cancelled", "expired"])
def test_a_job_that_ends_early_keeps_what_it_has(tmp_path: Path, ends: str) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, batches={"lines_in_flight": 4}) as at:
            client = at.client()
            data = content([line("first"), *(line(f"line {i}", max_tokens=500) for i in range(20))])
            at.doors.instance.held = True
            batch = await begin(client, data, window="2s" if ends == "expired" else "24h")
            await at.doors.instance.until(lambda: len(at.doors.instance.placed) == 4)
            for _ in range(3):
                at.doors.instance.one()
            if ends == "cancelled":
                batch = await until(
                    client, batch, lambda one: bool(one.request_counts and one.request_counts.completed)
                )
                assert (await client.batches.cancel(batch.id)).status == "cancelling"
            batch = await ended(client, batch)
            assert batch.status == ends
            output, errors = await results(client, batch)
            assert broken_results(data.splitlines(), output, errors) == []
            assert [json.loads(one)["custom_id"] for one in output] == ["first"]
            assert {json.loads(one)["error"]["code"] for one in errors} == {f"batch_{ends}"}
            assert not at.doors.instance.running
            if ends == "expired":
                with pytest.raises(openai.BadRequestError):
                    await client.batches.cancel(batch.id)

    asyncio.run(test())


def test_a_dispatcher_that_stops_leaves_its_job_to_another(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = MemoryEtcd()
        data = content([line(f"line {i}", max_tokens=50) for i in range(40)])
        async with running_batches(tmp_path, etcd, batches={"segment_lines": 4, "lines_in_flight": 8}) as at:
            batch = await begin(at.client(), data)
            await until(at.client(), batch, lambda one: bool(one.request_counts and one.request_counts.completed))
            at.doors.instance.held = True
        async with running_batches(tmp_path, etcd, "dispatcher-1") as other:
            batch = await ended(other.client(), batch)
            assert batch.status == "completed"
            output, errors = await results(other.client(), batch)
            assert broken_results(data.splitlines(), output, errors) == []
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 40
            assert len(other.doors.instance.placed) < 40

    asyncio.run(test())


def test_a_dispatcher_that_loses_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = MemoryEtcd()
        data = content([line(f"line {i}", max_tokens=2) for i in range(12)])
        async with running_batches(tmp_path, etcd, batches={"segment_lines": 3}) as at:
            at.doors.instance.held = True
            batch = await begin(at.client(), data)
            await at.doors.instance.until(lambda: len(at.doors.instance.placed) == 12)
            async with running_batches(tmp_path, etcd, "dispatcher-1") as other:
                (lease,) = etcd.leases
                etcd.expire(lease)  # at.runner does not know yet
                batch = await ended(other.client(), batch)
                at.doors.instance.release()
                output, errors = await results(other.client(), batch)
                assert broken_results(data.splitlines(), output, errors) == []
                assert len(other.doors.instance.placed) == 12

    asyncio.run(test())


def test_answers_of_etcd_may_be_lost(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = MemoryEtcd()
        data = content([line(f"line {i}") for i in range(12)])
        async with running_batches(tmp_path, etcd, batches={"segment_lines": 3, "lines_in_flight": 3}) as at:
            batch = await begin(at.client(), data)
            await until(at.client(), batch, lambda one: one.status != "validating")
            etcd.lose_answers = 2
            batch = await ended(at.client(), batch)
            output, errors = await results(at.client(), batch)
            assert broken_results(data.splitlines(), output, errors) == []

    asyncio.run(test())


def test_tenants_see_their_own(tmp_path: Path) -> None:
    async def test() -> None:
        tenants = tuple(Tenant(name, (hash_key(f"dk-{name}"),), Quota(name)) for name in ("acme", "other"))
        async with running_batches(tmp_path, tenants=tenants) as at:
            mine, others = at.client("dk-acme"), at.client("dk-other")
            batch = await ended(mine, await begin(mine, content([line("a")])))
            assert batch.status == "completed"
            assert [place.tenant for place in at.doors.instance.placed] == ["acme"]
            assert (await others.batches.list()).data == []
            assert (await others.files.list()).data == []
            for call in (
                others.batches.retrieve(batch.id),
                others.batches.cancel(batch.id),
                others.files.retrieve(batch.input_file_id),
                others.files.content(batch.output_file_id or ""),
                others.files.delete(batch.input_file_id),
                others.batches.create(
                    input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
            with pytest.raises(openai.AuthenticationError):
                await at.client("dk-none").batches.list()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"extra_body": {"foo": 1}}, "foo"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, given: dict[str, Any], param: str) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            file = await at.client().files.create(file=("in", b"{}"), purpose="batch")
            values: Any = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"} | given
            with pytest.raises(openai.BadRequestError) as error:
                await at.client().batches.create(**values)
            assert error.value.param == param

    asyncio.run(test())


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_download_that_breaks_off_does_not_look_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: bytes, loop: Loop
) -> None:
    blocks = ContentStore.blocks

    async def broken(store: ContentStore, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        async for block in blocks(store, name, offset):
            yield block
            raise OSError("the disk is away")

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            file = await at.client().files.create(file=("in", b"x" * 1000), purpose="batch")
            monkeypatch.setattr(ContentStore, "blocks", broken)
            reader, writer = await asyncio.open_connection("127.0.0.1", at.doors.http_port)
            head = b"GET /v1/files/%b/content HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\n"
            writer.write(head % (file.id.encode(), version))
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test())


@pytest.mark.parametrize("limit", ["0", "1x", "101", "0000001000", "000000001" + "0" * 5_000])
def test_a_wrong_limit_is_refused(tmp_path: Path, limit: str) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            with pytest.raises(openai.BadRequestError) as error:
                await at.client().batches.list(extra_query={"limit": limit})
            assert error.value.param == "limit"

    asyncio.run(test())


def test_a_file_that_is_too_long_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False, batches={"max_file_bytes": 1000}) as at:
            with pytest.raises(openai.BadRequestError, match="more than 1000 bytes") as error:
                await at.client().files.create(file=("in", b"x" * 1001), purpose="batch")
            assert (error.value.param, "multipart" in str(error.value)) == ("file", False)
            assert not at.etcd.items
            while files_in(tmp_path):
                await asyncio.sleep(0.01)

    asyncio.run(test())


def test_the_document_has_every_path(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            service, authenticator = at.jobs.service, at.doors.authenticator
            routes = BatchRoutes(service, authenticator, HttpConfig()).routes()
            documented = openapi_document()["paths"]
            for route in routes:
                assert route.method.lower() in documented[route.path]
            told = {(method, path) for path, methods in documented.items() for method in methods}
            assert len([one for one in told if "files" in one[1] or "batches" in one[1]]) == len(routes)

    asyncio.run(test())


def test_a_record_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = MemoryEtcd()
        for key in ("jobs/batch_later/record", "files/file-later"):
            await etcd.put(f"/dunlin/batches/{key}", b'{"status": "later"}')
        async with running_batches(tmp_path, etcd) as at:
            batch = await ended(at.client(), await begin(at.client(), content([line("a")])))
            assert batch.status == "completed"
            assert [one.id async for one in at.client().batches.list()] == [batch.id]
            assert [one.id async for one in at.client().files.list()] == [batch.input_file_id]
            with pytest.raises(openai.NotFoundError):
                await at.client().batches.retrieve("batch_later")

    asyncio.run(test())


def test_a_store_that_is_full_stops_a_job_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_run, "STORE_RETRY_S", 0.001)

    async def test() -> None:
        write, failures = ContentStore.write, 5

        async def failing(store: ContentStore, name: str, data: bytes) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                await write(store, name, data[:-1])
                raise OSError(28, "No space left on device")
            await write(store, name, data)

        monkeypatch.setattr(ContentStore, "write", failing)
        data = content([line(f"line {i}") for i in range(12)])
        async with running_batches(tmp_path, batches={"segment_lines": 3}) as at:
            batch = await ended(at.client(), await begin(at.client(), data))
            assert (batch.status, failures) == ("completed", 0)
            output, errors = await results(at.client(), batch)
            assert broken_results(data.splitlines(), output, errors) == []

    asyncio.run(test())


def test_a_dispatcher_works_on_so_many_jobs_and_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, batches={"jobs_at_once": 2}) as at:
            at.doors.instance.held = True
            begun = [await begin(at.client(), content([line(f"job {i}")])) for i in range(4)]
            await at.doors.instance.until(lambda: len(at.doors.instance.placed) == 2)
            assert len([key for key in at.etcd.items if key.endswith("/claim")]) == 2
            at.doors.instance.release()
            for batch in begun:
                assert (await ended(at.client(), batch)).status == "completed"

    asyncio.run(test())
