"""The open-loop load generator: sends each job when its time has come, whatever became of those before.

Knows a `LoadTarget` and a clock; `stats` computes figures from the records.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job


class RequestRejected(Exception):
    """The cluster said that it is full; nothing was done for the request."""


class RequestFailed(Exception):
    """The request ended in an error."""


@dataclass(frozen=True, slots=True)
class StreamedTokens:
    """One message of a stream: new token ids, and the request's public id once known."""

    tokens: Sequence[int]
    request: str = ""


class LoadTarget(Protocol):
    """A way into a cluster."""

    def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        """Send `job`, greedy and with end tokens ignored. Raises RequestRejected or RequestFailed."""
        ...


Observer = Callable[[RequestRecord, StreamedTokens | None], None]
"""Called when something came for a request, and with None when it ended."""


class LoadGenerator:
    """One run: jobs in order of time, and the records that come of them."""

    def __init__(
        self, jobs: Sequence[Job], door: LoadTarget, observer: Observer | None = None, limit_open: int = 4096
    ) -> None:
        self._jobs = jobs
        self._door = door
        self._observer = observer
        self._limit_open = limit_open
        self._start_s = 0.0
        self.records: list[RequestRecord] = []
        self.open = 0

    async def run(self) -> list[RequestRecord]:
        """Send everything and wait for the last answer. Cancelling it ends every stream."""
        self._start_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for job in self._jobs:
                await asyncio.sleep(max(0.0, job.at_s - self.now_s()))
                record = RequestRecord(
                    job.at_s, len(job.prompt), job.max_tokens, job.clipped, sent_s=self.now_s(), label=job.label
                )
                self.records.append(record)
                tasks.create_task(self._one(job, record))
        return self.records

    @property
    def failed(self) -> int:
        """The number of requests so far that did not complete."""
        return sum(record.outcome != "ok" for record in self.records if record.end_s)

    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start_s

    async def _one(self, job: Job, record: RequestRecord) -> None:
        if self.open >= self._limit_open:
            record.detail = f"the generator holds {self._limit_open} open requests already"
            record.end_s = self.now_s()
            return
        self.open += 1
        try:
            await self._follow(job, record)
        except RequestRejected as refused:
            record.outcome, record.detail = "refused", str(refused)
        except RequestFailed as failed:
            record.detail = str(failed)
        finally:
            self.open -= 1
            record.end_s = self.now_s()
            self._tell(record, None)

    async def _follow(self, job: Job, record: RequestRecord) -> None:
        async with aclosing(self._door.stream(job)) as stream:
            async for arrived in stream:
                record.request = arrived.request or record.request
                record.tokens.extend(arrived.tokens)
                record.token_s.extend([self.now_s()] * len(arrived.tokens))
                self._tell(record, arrived)
        if len(record.tokens) == job.max_tokens:
            record.outcome = "ok"
        else:
            record.detail = f"{record.request}: ended after {len(record.tokens)} of {job.max_tokens} tokens"

    def _tell(self, record: RequestRecord, arrived: StreamedTokens | None) -> None:
        if self._observer is not None:
            self._observer(record, arrived)
