"""The load generator over the SDK: what each answer of a cluster means for a run."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from dunlin.client import AsyncClient, DunlinError, GenerateEvent, GenerationFailed, QueueFull
from dunlin.messages.types import i32
from dunlin.workload.loadgen.load_generator import LoadTarget, RequestFailed, RequestRejected, StreamedTokens
from dunlin.workload.loadgen.targets import SdkTarget
from dunlin.workload.traffic.prompts import Job

JOB = Job(0.0, i32([5, 6]), 3)


async def through(door: LoadTarget, job: Job = JOB) -> list[StreamedTokens]:
    return [arrived async for arrived in door.stream(job)]


class Told:
    """An SDK client that does as told, and remembers what it was asked."""

    def __init__(self, error: DunlinError | None = None) -> None:
        self.error = error
        self.asked: dict[str, Any] = {}

    async def stream(self, prompt: object, **options: Any) -> AsyncGenerator[GenerateEvent, None]:
        self.asked = {"prompt": prompt, **options}
        yield GenerateEvent("req-1-1")
        yield GenerateEvent("req-1-1", tokens=i32([7, 8]))
        if self.error is not None:
            raise self.error


def over_sdk(client: Told, job: Job = JOB) -> list[StreamedTokens]:
    return asyncio.run(through(SdkTarget(cast(AsyncClient, client)), job))


def test_the_sdk_brings_token_ids() -> None:
    client = Told()
    got = over_sdk(client)
    assert [list(arrived.tokens) for arrived in got] == [[], [7, 8]]
    assert client.asked["prompt"] == i32([5, 6])
    assert (client.asked["temperature"], client.asked["seed"], client.asked["ignore_eos"]) == (0.0, None, True)


@pytest.mark.parametrize(
    ("error", "kind"), [(QueueFull("full", 1.0), RequestRejected), (GenerationFailed("lost"), RequestFailed)]
)
def test_the_sdk_tells_full_from_failed(error: DunlinError, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=str(error)):
        over_sdk(Told(error))
