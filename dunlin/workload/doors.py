"""The load generator's way into a cluster through the SDK, over gRPC; `http.py` has the one through the HTTP door."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from dunlin.client.errors import DunlinError, QueueFull
from dunlin.workload.generator import Arrived, DoorFailed, DoorRefused
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
