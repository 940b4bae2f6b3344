"""One claimed job at work: scan its input, feed its lines to the gateway, commit their results in segments."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from services.dispatcher.batches.content_store import ContentStore, file_object, segment_object
from services.dispatcher.batches.input_lines import BadLine, BatchLine, InputLine, InputScan, input_lines
from services.dispatcher.batches.job_store import Claim, JobStore
from services.dispatcher.batches.line_window import LineResult, LineWindow, Segment, WindowLimits
from services.dispatcher.batches.records import JobRecord, JobStatus, LineError
from services.dispatcher.doors.batches.config import BatchesConfig
from services.dispatcher.doors.batches.line_answers import LineAnswerer, bad_line_result, unfinished_result

_log = logging.getLogger(__name__)

LINES_PER_TURN = 256
"""Lines that are scanned in one turn of the event loop: about a millisecond."""
STORE_RETRY_S = 1.0
ENDINGS = {
    JobStatus.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was answered"),
    JobStatus.EXPIRED: ("batch_expired", "this request could not be answered within the completion window"),
}
"""How a job ends early: the error of each line that has no answer."""


class JobRun:
    """Owns the lines in flight of one claimed job. `run` it as a task; cancelling that ends it, and its lines.

    `clock` returns Unix seconds. Raises ClaimLost when another dispatcher may have the job.
    """

    def __init__(
        self,
        claim: Claim,
        jobs: JobStore,
        contents: ContentStore,
        answerer: LineAnswerer,
        config: BatchesConfig,
        clock: Callable[[], float],
    ) -> None:
        self._claim = claim
        self._jobs = jobs
        self._contents = contents
        self._answerer = answerer
        self._config = config
        self._clock = clock
        limits = (config.lines_in_flight, config.uncommitted_lines, config.uncommitted_bytes, config.segment_lines)
        self._window = LineWindow(WindowLimits(*limits))
        self._scan = InputScan(claim.job.endpoint)
        self._tasks: dict[int, tuple[asyncio.Task[None], BatchLine]] = {}
        self._ending: JobStatus | None = None
        self._all_started = False
        self._changed = asyncio.Event()

    @property
    def job(self) -> JobRecord:
        """The job's record as last committed."""
        return self._claim.job

    def cancel(self) -> None:
        """The job's cancellation was asked for: what has no answer gets `batch_cancelled`, and the job ends."""
        self._end_early(JobStatus.CANCELLED)

    async def run(self) -> None:
        """Work until the job is not open."""
        try:
            await self._scan_input()
        except FileNotFoundError:
            await self._fail(LineError(0, "input_file_not_found", "the input file is gone"))
        if not self.job.is_open:
            return
        expiry = asyncio.get_running_loop().call_later(
            max(0.0, self.job.expires_s - self._clock()), self._end_early, JobStatus.EXPIRED
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._feed(group))
                await self._commit_all()
        finally:
            expiry.cancel()
        ended = self.job.ended(self._ending or JobStatus.COMPLETED, self._clock())
        await self._jobs.commit(self._claim, ended)
        _log.info("batch %s is %s: %d answered, %d failed", ended.id, ended.status, ended.completed, ended.failed)

    # --- the input ---

    async def _scan_input(self) -> None:
        scan, most = self._scan, self._config.max_lines
        async with aclosing(self._lines(0, 0)) as lines:
            async for line in lines:
                scan.add(line)
                if scan.total % LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
                if scan.total > most:
                    text = f"more than {most} lines, the most of one batch"
                    return await self._fail(LineError(0, "too_many_lines", text))
        scan.forget_ids()
        if not scan.total:
            await self._fail(LineError(0, "empty_file", "the input file has no line"))
        elif self.job.status is JobStatus.VALIDATING:
            validated = self.job.validated(scan.total, scan.bad_lines, tuple(scan.errors), self._clock())
            await self._jobs.commit(self._claim, validated)

    async def _fail(self, error: LineError) -> None:
        await self._jobs.commit(self._claim, self.job.failed_with(error, self._clock()))

    def _lines(self, lines_read: int, offset: int) -> AsyncGenerator[InputLine, None]:
        blocks = self._contents.blocks(file_object(self.job.input_file), offset)
        return input_lines(blocks, self._config.max_line_bytes, lines_read, offset)

    # --- the lines ---

    async def _feed(self, group: asyncio.TaskGroup) -> None:
        async with aclosing(self._lines(self.job.lines_read, self.job.offset)) as lines:
            async for line in lines:
                while not self._window.can_start:
                    await self._wait_changed()
                self._window.start(line.number, line.stop)
                self._begin(group, line)
                if line.number % LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
        self._all_started = True
        self._changed.set()

    def _begin(self, group: asyncio.TaskGroup, line: InputLine) -> None:
        job = self.job
        try:
            request = self._scan.request(line)
        except BadLine as bad:
            self._finish(line.number, bad_line_result(job, line.number, bad))
            return
        if self._ending is not None:
            self._finish_unanswered(line.number, request)
        else:
            self._tasks[line.number] = group.create_task(self._answer(line.number, request)), request

    async def _answer(self, number: int, request: BatchLine) -> None:
        result = await self._answerer.answer(self.job, number, request)
        self._tasks.pop(number, None)
        self._finish(number, result)

    def _end_early(self, status: JobStatus) -> None:
        if self._ending is not None:
            return
        self._ending = status
        for number, (task, request) in self._tasks.items():
            task.cancel()
            self._finish_unanswered(number, request)
        self._tasks.clear()

    def _finish_unanswered(self, number: int, request: BatchLine) -> None:
        assert self._ending is not None
        self._finish(number, unfinished_result(self.job, number, request.custom_id, *ENDINGS[self._ending]))

    def _finish(self, number: int, result: LineResult) -> None:
        self._window.finish(number, result)
        self._changed.set()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- the results ---

    async def _commit_all(self) -> None:
        """Commit whole segments as they are ready, smaller ones after the interval, until every line is committed."""
        while not (self._all_started and self._window.is_empty):
            await self._wait_due()
            segment = self._window.next_segment()
            if segment is not None:
                await self._commit(segment)
                self._window.commit(segment)
                self._changed.set()

    async def _wait_due(self) -> None:
        """Wait until a segment is worth its commit, or for the interval."""
        try:
            async with asyncio.timeout(self._config.commit_interval_s):
                while not self._is_due():
                    await self._wait_changed()
        except TimeoutError:
            pass

    def _is_due(self) -> bool:
        window = self._window
        if self._all_started and not window.running:
            return True
        return window.ready >= self._config.segment_lines or (window.is_full and window.ready > 0)

    async def _commit(self, segment: Segment) -> None:
        job = self.job
        record = segment.record(job.segments, self._claim.fence)
        for is_error, text in ((False, segment.output), (True, segment.errors)):
            if text:
                await self._write(segment_object(job.id, record, is_error), text)
        await self._jobs.commit(self._claim, segment.advance(job), record)

    async def _write(self, name: str, text: bytes) -> None:
        """Write an object; waits where the store is away or full, for no answer may be lost."""
        while True:
            try:
                return await self._contents.write(name, text)
            except OSError as error:
                _log.warning("cannot write %s: %s; tried again every %g s", name, error, STORE_RETRY_S)
                await asyncio.sleep(STORE_RETRY_S)
