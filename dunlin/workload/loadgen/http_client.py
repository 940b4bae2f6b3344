"""The load generator's way into a cluster through its HTTP door: aiohttp's client, and the events of a stream."""

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError

from dunlin.client.credentials import ANONYMOUS, Credentials
from dunlin.workload.loadgen.load_generator import RequestFailed, RequestRejected, StreamedTokens
from dunlin.workload.traffic.prompts import Job

LINE_BYTES = 1 << 19
"""Half of the longest line of a stream that is read: one token's logprobs are far below."""
CONNECT_S = 30.0


class HttpTarget:
    """Through /v1/completions; used as `async with HttpTarget(url, model) as door`. Owns the client.

    Each request has a connection of its own, since each arrival stands for a client. Token ids are unknown: -1 stands
    for each token that came.
    """

    def __init__(self, url: str, model: str, access: Credentials = ANONYMOUS) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self._access = access
        self._client: aiohttp.ClientSession

    async def __aenter__(self) -> "HttpTarget":
        # Made once: reading the certificates takes longer than a request.
        tls = self._access.security.client_context() if self._access.security is not None else True
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0, force_close=True),
            headers=self._access.metadata,
            # A request may take as long as the cluster needs: the run shows it.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            read_bufsize=LINE_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        """Send `job` and yield its tokens as they come; leaving early closes the connection.

        Raises:
            RequestRejected: the cluster is full (429).
            RequestFailed: any other answer, an error within the stream, or a connection that broke.
        """
        try:
            async with self._client.post(self._url, json=self._asked(job)) as answer:
                await _check(answer)
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        event = line[5:].strip()
                        if event == b"[DONE]":
                            return
                        yield _arrived(event)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            raise RequestFailed(f"{self._url}: {error or type(error).__name__}") from None
        raise RequestFailed("the stream ended without [DONE]")

    def _asked(self, job: Job) -> dict[str, Any]:
        asked = {
            "model": self._model,
            "prompt": list(job.prompt),
            "max_tokens": job.max_tokens,
            "temperature": 0.0 if job.seed is None else 1.0,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 0,  # with them every token makes a chunk, also one without text of its own
            "request_class": job.request_class.name.lower(),
        }
        return asked if job.seed is None else asked | {"seed": job.seed}


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status == 200:
        return
    said = f"HTTP {answer.status}: {(await answer.text(errors='replace'))[:500]}"
    raise RequestRejected(said) if answer.status == 429 else RequestFailed(said)


def _arrived(event: bytes) -> StreamedTokens:
    chunk = json.loads(event)
    with suppress(LookupError, TypeError, AttributeError):  # servers have several forms of errors
        if not chunk.get("error"):
            tokens = [choice["logprobs"]["tokens"] for choice in chunk["choices"] if choice.get("logprobs")]
            return StreamedTokens([-1] * sum(map(len, tokens)), chunk["id"])
    raise RequestFailed(f"the stream said {event.decode(errors='replace'):.500}")
