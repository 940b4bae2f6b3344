"""Pages of jobs and files: each goes on behind the last one, and none passes for the next that is the first again."""

import asyncio
from pathlib import Path

import openai
import pytest

from dunlin.client import AsyncClient, InvalidRequest
from tests.services.dispatcher.doors.batches.running_batches import running_batches
from tests.services.dispatcher.doors.batches.test_batches import begin, content, ended, line


def test_a_page_of_jobs_behind_one_that_is_gone_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path) as at:
            client = at.client()
            jobs = [await ended(client, await begin(client, content([line("a")]))) for _ in range(3)]
            page = await client.batches.list(limit=2)
            assert [job.id for job in page.data] == [jobs[2].id, jobs[1].id]
            assert [job.id for job in (await client.batches.list(limit=2, after=jobs[1].id)).data] == [jobs[0].id]
            assert (await client.batches.list(after=jobs[0].id)).data == []
            await client.files.delete(jobs[1].output_file_id or "")
            with pytest.raises(openai.BadRequestError, match=f"'{jobs[1].id}' is not in the list") as refused:
                await client.batches.list(limit=2, after=jobs[1].id)
            assert refused.value.param == "after"
            async with AsyncClient(at.doors.endpoint) as sdk:
                assert [job.batch for job in (await sdk.batches.list(after=jobs[2].id)).batches] == [jobs[0].id]
                with pytest.raises(InvalidRequest, match="after"):
                    await sdk.batches.list(after=jobs[1].id)

    asyncio.run(test())


def test_a_page_of_files_behind_one_that_is_gone_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            client = at.client()
            files = [await client.files.create(file=(f"{i}", b"{}"), purpose="batch") for i in range(3)]
            assert [file.id for file in (await client.files.list(after=files[1].id)).data] == [files[0].id]
            assert [one.id async for one in client.files.list(limit=1, order="asc")] == [file.id for file in files]
            await client.files.delete(files[1].id)
            with pytest.raises(openai.BadRequestError, match=f"'{files[1].id}' is not in the list"):
                await client.files.list(after=files[1].id)

    asyncio.run(test())
