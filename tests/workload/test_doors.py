"""The doors of the load generator: what each answer of a cluster means for a run."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from dunlin.client import AsyncClient, DunlinError, GenerateEvent, GenerationFailed, QueueFull
from dunlin.messages.types import i32
from dunlin.workload.doors import HttpDoor, SdkDoor
from dunlin.workload.generator import Arrived, Door, DoorFailed, DoorRefused
from dunlin.workload.prompts import Job

JOB = Job(0.0, i32([5, 6]), 3)


async def through(door: Door, job: Job = JOB) -> list[Arrived]:
    return [arrived async for arrived in door.stream(job)]


def chunk(*tokens: str) -> bytes:
    body = {"id": "req-1-1", "choices": [{"text": "", "logprobs": {"tokens": list(tokens)}}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
OK = b"HTTP/1.1 200 OK\r\n\r\n"


def over_http(answer: bytes, job: Job = JOB) -> tuple[list[Arrived], dict[str, Any]]:
    """What comes of an answer, and what was asked."""
    heard: dict[str, Any] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        heard.update(json.loads(await reader.readexactly(length)))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def run() -> list[Arrived]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await through(HttpDoor(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "m"), job)

    return asyncio.run(run()), heard


def test_http_counts_tokens_chunk_by_chunk() -> None:
    got, asked = over_http(OK + chunk("a", "b") + chunk() + chunk("c") + DONE)
    assert [len(arrived.tokens) for arrived in got] == [2, 0, 1]
    assert {arrived.request for arrived in got} == {"req-1-1"}
    assert (asked["prompt"], asked["max_tokens"], asked["ignore_eos"], asked["temperature"]) == ([5, 6], 3, True, 0.0)
    assert "seed" not in asked


def test_http_samples_with_a_seed() -> None:
    _, asked = over_http(OK + DONE, Job(0.0, i32([5]), 1, seed=9))
    assert (asked["seed"], asked["temperature"]) == (9, 1.0)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\nfull", DoorRefused, "429: full"),
        (b"HTTP/1.1 400 Bad\r\n\r\nno", DoorFailed, "400: no"),
        (b"HTTP/1.1 503 Away\r\n\r\nno", DoorFailed, "503: no"),
        (OK + b'data: {"error": {"message": "boom"}}\n\n', DoorFailed, "boom"),
        (OK + chunk("a"), DoorFailed, r"without \[DONE\]"),
        (OK + b"data: {\n\n", DoorFailed, "Expecting"),
    ],
)
def test_http_says_how_it_failed(answer: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        over_http(answer)


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


def over_sdk(client: Told, job: Job = JOB) -> list[Arrived]:
    return asyncio.run(through(SdkDoor(cast(AsyncClient, client)), job))


def test_the_sdk_brings_token_ids() -> None:
    client = Told()
    got = over_sdk(client)
    assert [list(arrived.tokens) for arrived in got] == [[], [7, 8]]
    assert client.asked["prompt"] == i32([5, 6])
    assert (client.asked["temperature"], client.asked["seed"], client.asked["ignore_eos"]) == (0.0, None, True)


@pytest.mark.parametrize(
    ("error", "kind"), [(QueueFull("full", 1.0), DoorRefused), (GenerationFailed("lost"), DoorFailed)]
)
def test_the_sdk_tells_full_from_failed(error: DunlinError, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=str(error)):
        over_sdk(Told(error))
