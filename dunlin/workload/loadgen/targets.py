"""The load generator's way into a cluster through the SDK, over gRPC; `http.py` has the one through the HTTP door."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from dunlin.client.errors import DunlinError, QueueFull
from dunlin.workload.loadgen.load_generator import RequestFailed, RequestRejected, StreamedTokens
from dunlin.workload.traffic.prompts import Job

if TYPE_CHECKING:
    from dunlin.client import AsyncClient


class SdkTarget:
    """Through the SDK, over one gRPC channel."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        """Send `job`. Raises RequestRejected or RequestFailed."""
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
                    yield StreamedTokens(piece.tokens, piece.request)
        except QueueFull as error:
            raise RequestRejected(str(error)) from None
        except DunlinError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from None
