"""A batch that is created while etcd's answers are lost: once, or not at all."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from dunlin.membership.errors import EtcdUnavailable
from tests.services.dispatcher.doors.batches.running_batches import running_batches
from tests.services.dispatcher.doors.batches.test_batches import begin, content, ended, line


def test_a_batch_whose_answer_from_etcd_is_lost_is_created_once(tmp_path: Path) -> None:
    """OpenAI's client sends it again by itself after a 503: its lines would be answered, and paid for, twice."""

    async def test() -> None:
        async with running_batches(tmp_path) as at:
            client = at.client().with_options(max_retries=2)
            file = await client.files.create(file=("in.jsonl", content([line("a")])), purpose="batch")
            at.etcd.lose_answers = 1
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
            assert (await ended(client, batch)).status == "completed"
            assert [job.id for job in (await client.batches.list()).data] == [batch.id]

    asyncio.run(test())


def test_a_batch_is_refused_while_etcd_is_away(tmp_path: Path) -> None:
    async def away(*arguments: Any) -> Any:
        raise EtcdUnavailable("away")

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            client = at.client().with_options(max_retries=0)
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(at.etcd, "txn", away)
                with pytest.raises(openai.InternalServerError, match="away"):
                    await begin(client, b"{}")
            assert (await client.batches.list()).data == []

    asyncio.run(test())
