"""Names and labels with what no record can hold: spelled out, or refused, and nothing is left behind."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.services.dispatcher.doors.batches.running_batches import running_batches


def test_a_name_that_is_no_utf_8_is_spelled_out(tmp_path: Path) -> None:
    body = (
        b'--cut\r\nContent-Disposition: form-data; name="file"; filename="p\xe4ge.jsonl"\r\n\r\n{}\r\n'
        b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--cut--\r\n'
    )

    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            headers = {"Content-Type": "multipart/form-data; boundary=cut"}
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{at.doors.url}/v1/files", data=body, headers=headers) as answer:
                    assert (answer.status, (await answer.json())["filename"]) == (200, "p\\udce4ge.jsonl")
            assert [len(list((tmp_path / "files").iterdir())), len((await at.client().files.list()).data)] == [1, 1]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("given", "status"), [({"metadata": {"a": "\ud800"}}, 400), ({"input_file_id": "file-\ud800"}, 404)]
)
def test_lone_surrogates_are_no_fault_of_the_server(tmp_path: Path, given: dict[str, Any], status: int) -> None:
    async def test() -> None:
        async with running_batches(tmp_path, runs=False) as at:
            file = await at.client().files.create(file=("in", b"{}"), purpose="batch")
            values = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"} | given
            headers = {"Content-Type": "application/json"}
            async with aiohttp.ClientSession() as session:
                async with session.post(
                    f"{at.doors.url}/v1/batches", data=json.dumps(values), headers=headers
                ) as answer:
                    assert answer.status == status

    asyncio.run(test())
