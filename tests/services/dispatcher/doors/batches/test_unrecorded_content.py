"""Content of uploads that have no record: left by an etcd that was away, or by a dispatcher that died."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import openai
import pytest

from dunlin.membership.errors import EtcdUnavailable
from services.dispatcher.batches.content_store import ContentStore
from services.dispatcher.batches.job_store import FILES
from services.dispatcher.doors.batches.runner import UNRECORDED_S
from tests.fakes.memory_etcd import MemoryEtcd
from tests.services.dispatcher.doors.batches.running_batches import RunningBatches, running_batches


async def upload(at: RunningBatches) -> str:
    return (await at.client().files.create(file=("in.jsonl", b"{}"), purpose="batch")).id


async def refused_upload(at: RunningBatches, put: Callable[..., Awaitable[int]]) -> None:
    with pytest.MonkeyPatch.context() as away:
        away.setattr(at.etcd, "put", put)
        with pytest.raises(openai.InternalServerError, match="away"):
            await upload(at)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def age(folder: Path, seconds: float) -> None:
    for path in folder.rglob("file-*"):
        os.utime(path, times=(time.time() - seconds,) * 2)


def test_content_that_etcd_took_no_record_of_is_removed_after_a_while(tmp_path: Path) -> None:
    async def away(*arguments: object) -> int:
        raise EtcdUnavailable("away")

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            kept, later = await upload(at), await upload(at)
            await at.etcd.put(FILES + later, b"of a later version")
            await refused_upload(at, away)
            assert len(names_in(tmp_path)) == 3
            age(tmp_path, UNRECORDED_S / 2)
            await at.jobs.runner.prune_once()
            assert len(names_in(tmp_path)) == 3, "its upload may go on still"
            age(tmp_path, UNRECORDED_S + 60)
            await at.jobs.runner.prune_once()
            assert names_in(tmp_path) == {kept, later}

    asyncio.run(test())


def test_a_record_whose_answer_was_lost_keeps_its_content(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = MemoryEtcd()
        async with running_batches(tmp_path, etcd, runs=False) as at:
            put = etcd.put

            async def answer_lost(*arguments: object) -> int:
                await put(*arguments)  # type: ignore[arg-type]
                raise EtcdUnavailable("away")

            await refused_upload(at, answer_lost)
            age(tmp_path, UNRECORDED_S + 60)
            await at.jobs.runner.prune_once()
            (file,) = (await at.client().files.list()).data
            assert (await at.client().files.content(file.id)).content == b"{}"

    asyncio.run(test())


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_objects_are_told_by_age_in_every_store(tmp_path: Path, scheme: str) -> None:
    async def test() -> None:
        store = ContentStore(f"{scheme}{tmp_path}")
        assert await store.older_objects("files", time.time() + 60) == []
        await store.write("files/one", b"1")
        assert await store.older_objects("files", time.time() + 60) == ["files/one"]
        assert await store.older_objects("files", time.time() - 60) == []
        store.close()

    asyncio.run(test())
