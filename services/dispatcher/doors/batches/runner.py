"""Works on batch jobs: follows them in etcd, claims those that no dispatcher works on, and forgets the old ones.

A claim stands under a lease. When its dispatcher dies, etcd removes it, the others see that, and one of them goes on
behind the last committed segment.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dunlin.membership.errors import EtcdError
from dunlin.membership.lease_keeper import LeaseKeeper, first_result
from services.dispatcher.batches.content_store import ContentStore, file_object, job_folder
from services.dispatcher.batches.job_directory import JobDirectory
from services.dispatcher.batches.job_store import ClaimLost, JobStore
from services.dispatcher.doors.batches.config import BatchesConfig
from services.dispatcher.doors.batches.job_run import JobRun
from services.dispatcher.doors.batches.line_answers import LineAnswerer

_log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""A job that ended in an error of this dispatcher or its surroundings is left alone for so long."""
PRUNE_EVERY_S = 600.0


class BatchRunner:
    """Owns the claims and the running jobs of this process, named `name`. `clock` returns Unix seconds."""

    def __init__(
        self,
        name: str,
        jobs: JobStore,
        contents: ContentStore,
        answerer: LineAnswerer,
        config: BatchesConfig,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._jobs = jobs
        self._contents = contents
        self._answerer = answerer
        self._config = config
        self._clock = clock
        self._directory = JobDirectory()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, JobRun] = {}
        self._main: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to work; the tasks, which never end by themselves."""
        self._main = [
            asyncio.create_task(self._follow(), name="batch jobs"),
            asyncio.create_task(self._prune(), name="old batch jobs"),
        ]
        return self._main

    async def stop(self) -> None:
        """Stop at once and give the claims back, so that another dispatcher goes on without waiting for a lease."""
        tasks = [*self._main, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self) -> None:
        async for event in self._jobs.watch():
            self._directory.apply(event)
            for job, run in self._runs.items():
                if self._directory.is_cancelled(job):
                    run.cancel()
            self._start_jobs()

    def _start_jobs(self) -> None:
        while len(self._tasks) < self._config.jobs_at_once:
            job = self._directory.next_unclaimed(self._tasks, self._config.tenant_jobs_at_once)
            if job is None:
                return
            task = self._tasks[job] = asyncio.create_task(self._work_on(job), name=f"batch {job}")
            task.add_done_callback(partial(self._on_done, job))

    def _on_done(self, job: str, task: "asyncio.Task[None]") -> None:
        del self._tasks[job]
        if not any(task.cancelling() for task in self._main):
            self._start_jobs()

    async def _work_on(self, job: str) -> None:
        """Claim the job and work on it; errors are logged, and the job is left to the next claim."""
        try:
            keeper = await LeaseKeeper.grant(self._jobs.etcd, self._config.lease_ttl_s)
            try:
                if await self._claimed(job, keeper):
                    return
            finally:
                await keeper.revoke()
        except ClaimLost:
            _log.warning("batch %s: another dispatcher may work on it", job)
        except EtcdError as error:
            _log.warning("batch %s: %s", job, error)
        except Exception:
            _log.exception("batch %s stopped; it goes on in %g s, here or elsewhere", job, AGAIN_S)
        # Spread: dispatchers that wait for the same thing should not meet again.
        await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))

    async def _claimed(self, job: str, keeper: LeaseKeeper) -> bool:
        """Claim the job under the keeper's lease and work on it; False: another dispatcher was faster."""
        claim = await self._jobs.claim(job, keeper.lease_id, self._name)
        if claim is None:
            return False
        run = self._runs[job] = JobRun(claim, self._jobs, self._contents, self._answerer, self._config, self._clock)
        _log.info("batch %s: at line %d of %d", job, claim.job.lines_read, claim.job.total)
        if self._directory.is_cancelled(job):
            run.cancel()
        try:
            why = await first_result(_finished(run), keeper.keep_alive())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            del self._runs[job]
        if why:
            _log.warning("batch %s: %s", job, why)
        return True

    # --- old jobs and files ---

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY_S * random.uniform(0.5, 1.5))
            with suppress(EtcdError, OSError):
                await self.prune_once()

    async def prune_once(self) -> None:
        """Forget what ended, or was uploaded, longer ago than it is kept.

        The content goes first: what a store did not take is forgotten by the next try, for its record is still there.
        """
        before_s = self._clock() - self._config.keep_s
        views = await self._jobs.list_jobs()
        for job in (view.job for view in views):
            if not job.is_open and job.ended_s < before_s:
                await self._contents.remove(job_folder(job.id))
                await self._jobs.remove(job.id)
        used = {view.job.input_file for view in views if view.job.is_open}
        for file in await self._jobs.list_files():
            if file.created_s < before_s and file.id not in used:
                await self._contents.remove(file_object(file.id))
                await self._jobs.remove_file(file.id)


async def _finished(run: JobRun) -> str:
    await run.run()
    return ""
