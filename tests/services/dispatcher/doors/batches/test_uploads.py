"""Uploads that come to nothing: neither content nor record is left of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from dunlin.client import AsyncClient, Unavailable
from dunlin.membership.errors import EtcdUnavailable
from services.dispatcher.doors.http.config import HttpConfig
from tests.services.dispatcher.doors.batches import running_batches as running_batches_module
from tests.services.dispatcher.doors.batches.running_batches import RunningBatches, running_batches
from tests.services.dispatcher.doors.batches.test_batches import files_in

FILE = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="in"\r\n\r\n{}\r\n'
HEADERS = {"Content-Type": "multipart/form-data; boundary=cut"}


def purpose(value: bytes) -> bytes:
    return b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + value


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)


async def check_nothing_is_left(at: RunningBatches, folder: Path) -> None:
    await until(lambda: not files_in(folder))
    assert (await at.client().files.list()).data == []


@pytest.mark.parametrize(
    "rest",
    [
        b"no boundary follows, and the body ends",
        purpose(b"fine-tune") + b"\r\n--cut--\r\n",
        b"--cut--\r\n",
        b"--cut\r\nContent-Type: multipart/mixed; boundary=in\r\n\r\n--in--\r\n--cut--\r\n",
    ],
    ids=["broken", "another purpose", "no purpose", "nested"],
)
def test_a_body_that_is_bad_behind_its_file_leaves_nothing(tmp_path: Path, rest: bytes) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{at.doors.url}/v1/files", data=FILE + rest, headers=HEADERS) as answer:
                    assert answer.status == 400
            await check_nothing_is_left(at, tmp_path)

    asyncio.run(test())


async def begin_upload(at: RunningBatches) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a body up to a field behind its file, until the file's content is stored."""
    contents, stored = at.jobs.service._contents, asyncio.Event()
    write_stream = contents.write_stream

    async def store(*arguments: Any) -> int:
        size = await write_stream(*arguments)
        stored.set()
        return size

    host, port = at.doors.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = FILE + purpose(b"bat")
    with pytest.MonkeyPatch.context() as watched:
        watched.setattr(contents, "write_stream", store)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=cut\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body) + 10_000, body)
        )
        async with asyncio.timeout(20):
            while not stored.is_set():  # the parser reads on before it tells where a part ends
                writer.write(b"x")
                await asyncio.sleep(0.01)
    return reader, writer


def test_a_client_that_leaves_behind_its_file_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            _, writer = await begin_upload(at)
            writer.transport.abort()
            await check_nothing_is_left(at, tmp_path)

    asyncio.run(test())


def test_a_client_that_falls_silent_behind_its_file_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_batches_module, "HttpConfig", lambda: HttpConfig(body_timeout_s=0.3))

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            reader, writer = await begin_upload(at)
            assert b" 408 " in await reader.readline()
            await check_nothing_is_left(at, tmp_path)
            writer.close()

    asyncio.run(test())


def test_an_upload_outlasts_the_end_of_the_jobs(tmp_path: Path) -> None:
    """A dispatcher that stops gives its jobs back first, and its doors end what they have begun."""

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            begun, going_on = asyncio.Event(), asyncio.Event()

            async def body() -> AsyncIterator[bytes]:
                yield FILE[:-2] + b"x" * 1000
                begun.set()
                await going_on.wait()
                yield b"\r\n" + purpose(b"batch") + b"\r\n--cut--\r\n"

            async with aiohttp.ClientSession() as session:
                upload = asyncio.create_task(session.post(f"{at.doors.url}/v1/files", data=body(), headers=HEADERS))
                await begun.wait()
                await until(lambda: bool(files_in(tmp_path)))
                await at.jobs.stop()
                going_on.set()
                async with await upload as answer:
                    assert answer.status == 200
                    assert (await answer.json())["bytes"] == 1002

    asyncio.run(test())


def test_an_upload_that_the_end_of_the_doors_cuts_off_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            await begin_upload(at)
        await until(lambda: not files_in(tmp_path))

    asyncio.run(test())


@pytest.mark.parametrize("is_written", [False, True], ids=["not written", "the answer is lost"])
def test_a_file_whose_record_is_not_written_leaves_nothing(tmp_path: Path, is_written: bool) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            with pytest.MonkeyPatch.context() as away:
                put = at.etcd.put

                async def fail(*arguments: Any) -> int:
                    if is_written:
                        await put(*arguments)
                    raise EtcdUnavailable("away")

                away.setattr(at.etcd, "put", fail)
                client = at.client().with_options(max_retries=0)
                with pytest.raises(openai.InternalServerError, match="away"):
                    await client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
                await until(lambda: not files_in(tmp_path))
                async with AsyncClient(at.doors.endpoint, reconnect_s=0.0) as sdk:
                    with pytest.raises(Unavailable, match="away"):
                        await sdk.batches.upload(tmp_file(tmp_path))
            (tmp_path / "in.jsonl").unlink()
            await check_nothing_is_left(at, tmp_path)
            await until(lambda: not at.etcd.items)

    asyncio.run(test())


def tmp_file(folder: Path) -> Path:
    path = folder / "in.jsonl"
    path.write_bytes(b"{}")
    return path
