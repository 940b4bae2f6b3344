"""Steady load from a fixed set of jobs whose answers are known: every answer that comes is compared.

`width` singers each take the next job as soon as their last one is done, or `pause_s` later, until told to stop.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

from dunlin.messages.types import i32
from dunlin.workload.loadgen.load_generator import LoadTarget, RequestFailed, RequestRejected
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job


def make_jobs(count: int, prompt_tokens: int, output_tokens: int, vocabulary: int, seed: int = 1) -> list[Job]:
    """Jobs with random prompts; every second one is sampled (with a seed of its own), the others greedy."""
    draw = random.Random(seed)
    return [
        Job(0.0, i32(draw.choices(range(vocabulary), k=prompt_tokens)), output_tokens, seed=i if i % 2 else None)
        for i in range(count)
    ]


async def record_stream(door: LoadTarget, job: Job, record: RequestRecord, now_s: Callable[[], float]) -> None:
    """Send `job` and note in `record` what comes, and when. Raises RequestRejected or RequestFailed."""
    async with aclosing(door.stream(job)) as stream:
        async for arrived in stream:
            record.request = arrived.request or record.request
            record.tokens.extend(arrived.tokens)
            record.token_s.extend([now_s()] * len(arrived.tokens))


class VerifiedLoad:
    """Owns the running requests and the verdict on the finished ones."""

    def __init__(self, door: LoadTarget, songs: Sequence[Job], width: int, pause_s: float = 0.0) -> None:
        self._door = door
        self._songs = songs
        self._width = width
        self._pause_s = pause_s
        self._next = itertools.count()
        self._over = False
        self._news = asyncio.Event()
        self._start_s = time.monotonic()
        self.references: dict[int, list[int]] = {}
        self.open: dict[int, RequestRecord] = {}
        self.finished = 0
        self.failures: list[str] = []
        self.records: list[RequestRecord] = []

    async def record_references(self) -> None:
        """Have every song sung once, undisturbed: what comes is what has to come from then on."""
        self._over = False
        turns = iter(range(len(self._songs)))

        async def singer() -> None:
            for song in turns:
                record = await self._send(song, song)
                self.references[song] = record.tokens

        await asyncio.gather(*(singer() for _ in range(self._width)))
        if self.failures:
            raise RuntimeError(f"the undisturbed run failed: {self.failures[0]}")

    async def run(self) -> None:
        """Sing until `finish` is called; the last songs are sung to their end."""
        self._over = False
        await asyncio.gather(*(self._worker() for _ in range(self._width)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sing beside the block; after it the last songs are sung to their end."""
        singing = asyncio.create_task(self.run())
        try:
            yield
        finally:
            self.stop()
            await singing

    async def until_finished(self, goal: int) -> None:
        """Wait until so many songs are done in all."""
        while self.finished < goal:
            self._news.clear()
            await self._news.wait()

    def stop(self) -> None:
        """No new songs."""
        self._over = True

    async def _worker(self) -> None:
        while not self._over:
            number = next(self._next)
            song = number % len(self._songs)
            record = await self._send(len(self._songs) + number, song)
            self.finished += 1
            self._news.set()
            if record.outcome != "ok":
                self.failures.append(f"{record.request}: {record.outcome}: {record.detail}")
            elif record.tokens != self.references[song]:
                self.failures.append(f"{record.request}: {first_difference(record.tokens, self.references[song])}")
            await asyncio.sleep(self._pause_s)

    async def _send(self, number: int, song: int) -> RequestRecord:
        job = self._songs[song]
        record = RequestRecord(self.now_s(), len(job.prompt), job.max_tokens)
        self.open[number] = record
        try:
            await record_stream(self._door, job, record, self.now_s)
            record.outcome = "ok" if len(record.tokens) == job.max_tokens else "error"
            record.detail = f"{len(record.tokens)} of {job.max_tokens} tokens"
        except RequestRejected as refused:
            record.outcome, record.detail = "refused", str(refused)
        except RequestFailed as failed:
            record.detail = str(failed)
        finally:
            record.end_s = self.now_s()
            del self.open[number]
            self.records.append(record)
        return record

    def now_s(self) -> float:
        """Seconds since the chorus was made."""
        return time.monotonic() - self._start_s

    def mid_stream(self) -> list[RequestRecord]:
        """Open requests between their first and last token, those with the most still to come first."""
        going = [record for record in self.open.values() if record.request and record.tokens]
        going = [record for record in going if len(record.tokens) < record.output_tokens // 2]
        return sorted(going, key=lambda record: len(record.tokens))

    def is_open(self, record: RequestRecord) -> bool:
        """Whether tokens of the request are still to come."""
        return any(record is one for one in self.open.values()) and len(record.tokens) < record.output_tokens


def first_difference(got: Sequence[int], wanted: Sequence[int]) -> str:
    """Where two texts part, in words."""
    at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    return f"another text from token {at} on: {list(got[at : at + 4])} instead of {list(wanted[at : at + 4])}"
