"""The gRPC service `Batches` behind the door's gate: keys, refusals, and a record of each call."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dunlin.auth.tenants import Tenant, hash_key
from dunlin.client import AsyncClient, DunlinError, InvalidRequest, NotAuthenticated
from dunlin.messages.door import Quota
from tests.services.dispatcher.doors.batches.running_batches import running_batches

LINE = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
TENANTS = tuple(Tenant(name, (hash_key(f"dk-{name}"),), Quota(name)) for name in ("acme", "other"))


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def write(self, line: Any) -> None:
        self.lines.append(tuple(line[name] for name in ("door", "path", "tenant", "status", "error")))


def test_each_call_is_recorded_and_each_tenant_sees_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        log = Log()
        async with running_batches(tmp_path, tenants=TENANTS, log=log) as at:
            async with AsyncClient(at.doors.endpoint, api_key="dk-acme") as acme:
                job = await acme.batches.create([LINE])
                await acme.batches.wait(job.batch, poll_s=0.01)
                assert [one["custom_id"] async for one in acme.batches.results(job.batch)] == ["a"]
            async with AsyncClient(at.doors.endpoint, api_key="dk-other") as other:
                for call in (other.batches.get(job.batch), other.batches.cancel(job.batch)):
                    with pytest.raises(InvalidRequest, match="no batch"):
                        await call
                with pytest.raises(DunlinError):
                    _ = [one async for one in other.batches.results(job.batch)]
                with pytest.raises(InvalidRequest, match="no file"):
                    await other.batches.create_from(job.input_file)
                with pytest.raises(InvalidRequest, match="endpoint"):
                    await other.batches.create_from(job.input_file, "/v1/embeddings")
            async with AsyncClient(at.doors.endpoint, api_key="dk-none") as stranger:
                with pytest.raises(NotAuthenticated):
                    await stranger.batches.upload([LINE])
        assert ("batch", "/v1/completions", "acme", 200, None) in log.lines
        told = {line for line in log.lines if line[0] == "grpc"}
        assert told == {
            ("grpc", "UploadFile", "acme", "OK", None),
            ("grpc", "CreateBatch", "acme", "OK", None),
            ("grpc", "GetBatch", "acme", "OK", None),
            ("grpc", "BatchResults", "acme", "OK", None),
            ("grpc", "GetBatch", "other", "NOT_FOUND", "not_found"),
            ("grpc", "CancelBatch", "other", "NOT_FOUND", "not_found"),
            ("grpc", "BatchResults", "other", "NOT_FOUND", "not_found"),
            ("grpc", "CreateBatch", "other", "NOT_FOUND", "not_found"),
            ("grpc", "CreateBatch", "other", "INVALID_ARGUMENT", "invalid"),
            ("grpc", "UploadFile", "", "UNAUTHENTICATED", "unauthenticated"),
        }

    asyncio.run(test())
