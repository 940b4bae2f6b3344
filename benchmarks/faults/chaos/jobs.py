"""Batch jobs of a live run, one every few minutes, and I10 of their results."""

import asyncio
import json
import time
from contextlib import aclosing, suppress
from pathlib import Path

from benchmarks.faults.batch_faults import different_answers, job_lines
from dunlin.client import AsyncClient, DunlinError
from dunlin.messages.batches import BatchJob
from services.dispatcher.batches.results_check import broken_results

EVERY_S = 150.0
LINES = 150
CREATE_S = 120.0
RETRY_S = 1.0


class ChaosJobs:
    """Owns the jobs of a run, with the files of their lines in `folder`."""

    def __init__(self, client: AsyncClient, folder: Path, vocabulary: int, seed: int) -> None:
        self.created: dict[str, Path] = {}
        self.broken: list[str] = []
        self.answered = 0
        self._client = client
        self._folder = folder
        self._vocabulary = vocabulary
        self._seed = seed

    async def create_for_ever(self) -> None:
        """Create a job every `EVERY_S`, until cancelled."""
        number = 0
        while True:
            await self._create(number)
            number += 1
            await asyncio.sleep(EVERY_S)

    async def check(self, limit_s: float) -> list[str]:
        """Wait until all jobs have ended; what is wrong with them."""
        deadline_s = time.monotonic() + limit_s
        for batch, path in self.created.items():
            job = await self._ended(batch, deadline_s)
            if job.status != "completed" or job.failed:
                self.broken.append(f"I12: job {batch} is {job.status}: {job.completed}, {job.failed} of {job.total}")
                continue
            output, errors = [await self._lines(batch, errors=kind) for kind in (False, True)]
            self.answered += len(output)
            wrong = broken_results(path.read_bytes().splitlines(), output, errors) + different_answers(output)
            self.broken += [f"I10: job {batch}: {text}" for text in wrong]
        return self.broken

    async def _create(self, number: int) -> None:
        path = self._folder / f"job-{number}.jsonl"
        lines = job_lines(LINES, self._vocabulary, self._seed + number)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        deadline_s = time.monotonic() + CREATE_S
        while time.monotonic() < deadline_s:
            with suppress(DunlinError):  # a job whose creation got no answer may run besides: its results are not read
                self.created[(await self._client.batches.create(path)).batch] = path
                return
            await asyncio.sleep(RETRY_S)
        self.broken.append(f"I12: no job could be created within {CREATE_S:g} s")

    async def _ended(self, batch: str, deadline_s: float) -> BatchJob:
        job = await self._job(batch)
        while job.is_open and time.monotonic() < deadline_s:
            await asyncio.sleep(RETRY_S)
            job = await self._job(batch)
        return job

    async def _job(self, batch: str) -> BatchJob:
        while True:
            with suppress(DunlinError):
                return await self._client.batches.get(batch)
            await asyncio.sleep(RETRY_S)

    async def _lines(self, batch: str, *, errors: bool) -> list[bytes]:
        parts = []
        async with aclosing(self._client.batches.content(batch, errors=errors)) as content:
            async for part in content:
                parts.append(part)
        return b"".join(parts).splitlines(keepends=True)
