"""The two ways into a cluster that the load generator knows: the SDK over gRPC, and the HTTP door."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dunlin.client.access import ANYBODY, Access
from dunlin.client.errors import DunlinError, QueueFull
from dunlin.workload.generator import Arrived, DoorFailed, DoorRefused
from dunlin.workload.http import Answer, HttpError, Post, events, read_all
from dunlin.workload.prompts import Job

if TYPE_CHECKING:
    from dunlin.client import AsyncClient


class SdkDoor:
    """Through the SDK, over one gRPC channel."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def stream(self, job: Job) -> AsyncGenerator[Arrived, None]:
        """Send `job`. Raises DoorRefused or DoorFailed."""
        pieces = self._client.stream(
            job.prompt,
            max_tokens=job.max_tokens,
            temperature=0.0 if job.seed is None else 1.0,
            seed=job.seed,
            ignore_eos=True,
            request_class=job.request_class,
        )
        try:
            async with aclosing(pieces) as stream:
                async for piece in stream:
                    yield Arrived(piece.tokens, piece.request)
        except QueueFull as error:
            raise DoorRefused(str(error)) from None
        except DunlinError as error:
            raise DoorFailed(f"{type(error).__name__}: {error}") from None


class HttpDoor:
    """Through /v1/completions, a connection per request. It names no token ids: -1 stands for each that came."""

    def __init__(self, url: str, model: str, access: Access = ANYBODY) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self._headers = access.metadata
        # Made once: reading the certificates takes longer than a request.
        self._context = access.security.client_context() if access.security is not None else None

    async def stream(self, job: Job) -> AsyncGenerator[Arrived, None]:
        """Send `job`. Raises DoorRefused or DoorFailed."""
        try:
            async with Post(self._url, self._asked(job), self._headers, self._context) as answer:
                await _check(answer)
                async with aclosing(events(answer.body)) as stream:
                    async for event in stream:
                        if event == "[DONE]":
                            return
                        yield _arrived(json.loads(event))
        except (HttpError, ValueError) as error:
            raise DoorFailed(str(error)) from None
        raise DoorFailed("the stream ended without [DONE]")

    def _asked(self, job: Job) -> dict[str, Any]:
        asked = {
            "model": self._model,
            "prompt": list(job.prompt),
            "max_tokens": job.max_tokens,
            "temperature": 0.0 if job.seed is None else 1.0,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 0,  # with them every token makes a chunk, also one without text of its own
        }
        return asked if job.seed is None else asked | {"seed": job.seed}


async def _check(answer: Answer) -> None:
    if answer.status == 200:
        return
    text = (await read_all(answer.body)).decode(errors="replace")
    said = f"HTTP {answer.status}: {text[:500]}"
    raise DoorRefused(said) if answer.status == 429 else DoorFailed(said)


def _arrived(chunk: dict[str, Any]) -> Arrived:
    if "error" in chunk:
        raise DoorFailed(str(chunk["error"].get("message", chunk["error"])))
    tokens = [choice["logprobs"]["tokens"] for choice in chunk["choices"] if choice.get("logprobs")]
    return Arrived([-1] * sum(map(len, tokens)), chunk["id"])
