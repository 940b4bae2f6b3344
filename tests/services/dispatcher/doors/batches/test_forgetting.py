"""Old jobs and files are forgotten, content and record, also where a store is away for a while."""

import asyncio
from pathlib import Path

import openai
import pytest

from tests.services.dispatcher.doors.batches.running_batches import running_batches
from tests.services.dispatcher.doors.batches.test_batches import begin, content, ended, files_in, line


def test_old_jobs_and_files_are_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_batches(tmp_path) as at:
            client = at.client()
            batch = await ended(client, await begin(client, content([line("a")])))
            await at.jobs.runner.prune_once()
            assert (await client.batches.list()).data
        async with running_batches(tmp_path, at.etcd, batches={"keep_s": 1e-6}) as at:
            await at.jobs.runner.prune_once()
            assert (await at.client().batches.list()).data == []
            assert (await at.client().files.list()).data == []
            with pytest.raises(openai.NotFoundError):
                await at.client().files.content(batch.output_file_id or "")
        assert files_in(tmp_path) == []
        assert not [key for key in at.etcd.items if "segments" in key]

    asyncio.run(test())


@pytest.mark.parametrize("folder", ["jobs/", "files/"])
def test_what_a_store_away_did_not_forget_is_forgotten_by_the_next_try(tmp_path: Path, folder: str) -> None:
    async def test() -> None:
        async with running_batches(tmp_path) as at:
            await ended(at.client(), await begin(at.client(), content([line("a")])))
        async with running_batches(tmp_path, at.etcd, batches={"keep_s": 1e-6}) as at:
            contents = at.jobs.service._contents
            with pytest.MonkeyPatch.context() as away:
                remove = contents.remove

                async def remove_others(name: str) -> None:
                    if name.startswith(folder):
                        raise OSError("away")
                    await remove(name)

                away.setattr(contents, "remove", remove_others)
                with pytest.raises(OSError, match="away"):
                    await at.jobs.runner.prune_once()
            assert files_in(tmp_path)
            await at.jobs.runner.prune_once()
            assert files_in(tmp_path) == []

    asyncio.run(test())
