"""What both doors offer of batches and files: upload, create, get, list, cancel, fetch. Each tenant sees its own.

Knows neither HTTP nor gRPC, and works on no job: `runner.py` does, at whichever dispatcher claims it.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress

from dunlin.limits import InvalidField, brief_repr, escape_surrogates
from dunlin.membership.errors import EtcdError
from dunlin.messages.door import RejectionCode
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.batches.content_store import (
    ContentStore,
    ContentTooLong,
    file_object,
    job_folder,
    segment_object,
)
from services.dispatcher.batches.job_store import JobStore
from services.dispatcher.batches.records import FileRecord, JobRecord, JobView
from services.dispatcher.doors.batches.config import BatchesConfig
from services.dispatcher.doors.batches.line_answers import ENDPOINTS

OUTPUT, ERRORS = "-output", "-errors"
"""How the ids of a job's result files end; they begin with `file-` and the job's own digits."""
MOST_METADATA = 16
MOST_METADATA_KEY, MOST_METADATA_VALUE = 64, 512
MOST_FILENAME_CHARACTERS = 255
MOST_LISTED = 100
WINDOW_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class BatchService:
    """Owns nothing but its view of the stores, and the removal of records that should not be there.

    `tenant` None: no keys are required. `clock` returns Unix seconds.
    """

    def __init__(
        self, jobs: JobStore, contents: ContentStore, config: BatchesConfig, clock: Callable[[], float]
    ) -> None:
        self._jobs = jobs
        self._contents = contents
        self._config = config
        self._clock = clock
        self._forgetting: set[asyncio.Task[None]] = set()

    # --- files ---

    async def upload(self, tenant: str | None, filename: str, blocks: AsyncIterator[bytes]) -> FileRecord:
        """Keep a file. Raises InvalidField and DoorError, as `receive` does."""
        made = await self.receive(tenant, filename, blocks)
        await self.keep(made)
        return made

    async def receive(self, tenant: str | None, filename: str, blocks: AsyncIterator[bytes]) -> FileRecord:
        """Store a file's content. There is no such file before the caller has it kept; or it must `discard` it.

        Raises:
            InvalidField: it is too long.
            DoorError: no more files are kept, or the stores are away.
        """
        with _stores():
            if len(await self._jobs.list_files()) >= self._config.max_files:
                raise _full(f"{self._config.max_files} files are kept already: delete some")
            file = f"file-{secrets.token_hex(12)}"
            # A multipart body's may be in any encoding: its bytes that are no UTF-8 come as lone surrogates.
            shown = escape_surrogates(filename)[:MOST_FILENAME_CHARACTERS]
            try:
                size = await self._contents.write_stream(file_object(file), blocks, self._config.max_file_bytes)
            except ContentTooLong as error:
                raise InvalidField("file", f"has {error}, the most that is taken") from error
        return FileRecord(file, tenant or "", shown, size, self._clock())

    async def keep(self, file: FileRecord) -> None:
        """Write the record of a file that was received. Raises DoorError: it is discarded."""
        try:
            with _stores():
                await self._jobs.add_file(file)
        except BaseException:
            self.discard(file)
            # It may be written, though the answer of etcd was lost; not awaited: this may be a cancellation.
            task = asyncio.create_task(self._forget(file), name=f"forget {file.id}")
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
            raise

    def discard(self, file: FileRecord) -> None:
        """Remove the content of a file that was received and is not kept."""
        self._contents.remove_later(file_object(file.id))

    async def _forget(self, file: FileRecord) -> None:
        with suppress(EtcdError):
            await self._jobs.remove_file(file.id)

    async def file(self, tenant: str | None, file: str) -> FileRecord:
        """A file's record; those of results are made from their job's. Raises DoorError."""
        with _stores():
            if file.endswith((OUTPUT, ERRORS)):
                return result_file(await self._own_job(tenant, _job_of(file)), file.endswith(ERRORS))
            found = await self._jobs.get_file(file) if file.isascii() else None
        if found is None or not _owns(tenant, found.tenant):
            raise _not_found(f"no file {file[:80]!r}")
        return found

    async def list_files(self, tenant: str | None) -> list[FileRecord]:
        """The uploaded files, newest first. Raises DoorError."""
        with _stores():
            return [file for file in await self._jobs.list_files() if _owns(tenant, file.tenant)]

    async def delete_file(self, tenant: str | None, file: str) -> None:
        """Forget an uploaded file; of a job that is not open, its result file means the whole job.

        The content goes first: what a store did not take is deleted by the next try, for its record is still there.
        Raises DoorError, also if an open job needs it.
        """
        await self.file(tenant, file)
        with _stores():
            if file.endswith((OUTPUT, ERRORS)):
                job = _job_of(file)
                if (await self._own_job(tenant, job)).is_open:
                    raise DoorError(RejectionCode.INVALID, f"{job} is not finished: cancel it first")
                await self._contents.remove(job_folder(job))
                await self._jobs.remove(job)
                return
            if any(view.job.is_open and view.job.input_file == file for view in await self._jobs.list_jobs()):
                raise DoorError(RejectionCode.INVALID, f"a batch that is not finished reads {file}: cancel it first")
            await self._contents.remove(file_object(file))
            await self._jobs.remove_file(file)

    async def content(self, tenant: str | None, file: str) -> AsyncGenerator[bytes, None]:
        """A file's content in blocks; of results, what is committed so far. Raises DoorError."""
        await self.file(tenant, file)
        with _stores():
            for name in await self._objects(file):
                async with aclosing(self._contents.blocks(name)) as blocks:
                    async for block in blocks:
                        yield block

    async def _objects(self, file: str) -> list[str]:
        if not file.endswith((OUTPUT, ERRORS)):
            return [file_object(file)]
        job, is_error = _job_of(file), file.endswith(ERRORS)
        return [
            segment_object(job, segment, is_error)
            for segment in await self._jobs.segments(job)
            if (segment.error_bytes if is_error else segment.output_bytes)
        ]

    # --- jobs ---

    async def create(
        self, tenant: str | None, input_file: str, endpoint: str, window_s: float, metadata: Mapping[str, str]
    ) -> JobView:
        """A new job, which a dispatcher begins at once.

        Raises:
            InvalidField: a value is not allowed.
            DoorError: there is no such file, no more jobs are taken, or the stores are away.
        """
        if endpoint not in ENDPOINTS:
            raise InvalidField("endpoint", f"must be one of {', '.join(ENDPOINTS)}, not {brief_repr(endpoint)}")
        if not 0 < window_s <= self._config.max_window_s:
            raise InvalidField("completion_window", f"must be at most {self._config.max_window_s:g} s")
        checked = _metadata(metadata)
        if input_file.endswith((OUTPUT, ERRORS)):
            raise InvalidField("input_file_id", "names results of a batch: upload them as a file first")
        await self.file(tenant, input_file)
        with _stores():
            if len(await self._jobs.list_jobs()) >= self._config.max_jobs:
                raise _full(f"{self._config.max_jobs} batches are kept already: delete result files of old ones")
            made = f"batch_{secrets.token_hex(12)}"
            job = JobRecord(made, tenant or "", endpoint, input_file, self._clock(), window_s, checked)
            await self._jobs.create(job)
        return JobView(job)

    async def get(self, tenant: str | None, job: str) -> JobView:
        """A job. Raises DoorError."""
        with _stores():
            view = await self._jobs.get(job) if _is_id(job) else None
        if view is None or not _owns(tenant, view.job.tenant):
            raise _not_found(f"no batch {job[:80]!r}")
        return view

    async def list_jobs(self, tenant: str | None, after: str, limit: int) -> tuple[list[JobView], bool]:
        """At most `limit` jobs, newest first, behind job `after` ("": from the first on); and whether there are more.

        Raises:
            InvalidField: there is no job `after`.
            DoorError: the stores are away.
        """
        with _stores():
            views = [view for view in await self._jobs.list_jobs() if _owns(tenant, view.job.tenant)]
        start = page_start([view.job.id for view in views], after)
        most = min(max(limit, 1), MOST_LISTED)
        return views[start : start + most], len(views) > start + most

    async def cancel(self, tenant: str | None, job: str) -> JobView:
        """Ask for a job's cancellation. Raises DoorError, also if it has ended another way."""
        view = await self.get(tenant, job)
        if view.job.is_open:
            with _stores():
                view = await self._jobs.cancel(job, self._clock()) or view
        if not view.cancelling_s:
            raise DoorError(RejectionCode.INVALID, f"{job} is {view.status}: it cannot be cancelled any more")
        return view

    async def _own_job(self, tenant: str | None, job: str) -> JobRecord:
        return (await self.get(tenant, job)).job


def page_start(ids: Sequence[str], after: str) -> int:
    """The place of the first object of a page: behind the last one of the page before, `after` ("": the first page).

    Raises:
        InvalidField: there is none of that id (any more). The list from its start would pass for the next page.
    """
    if not after:
        return 0
    if after not in ids:
        raise InvalidField("after", f"{brief_repr(after)} is not in the list (any more): begin without it")
    return ids.index(after) + 1


def parse_window(text: object) -> float:
    """The seconds of a completion window such as 24h. Raises InvalidField."""
    if isinstance(text, str) and text[:-1].isdecimal() and text[:-1].isascii() and len(text) <= 10:
        unit = WINDOW_UNITS.get(text[-1])
        if unit is not None:
            return float(text[:-1]) * unit
    raise InvalidField("completion_window", f"must be a time such as 24h, 90m or 3d, not {brief_repr(text)}")


def result_files(job: JobRecord) -> tuple[str | None, str | None]:
    """The ids of a job's output file and error file; None: it has no such line."""
    stem = f"file-{job.id.removeprefix('batch_')}"
    return (stem + OUTPUT if job.output_bytes else None), (stem + ERRORS if job.error_bytes else None)


def result_file(job: JobRecord, is_error: bool) -> FileRecord:
    """The record of a job's output file, or of its error file."""
    ending, size = (ERRORS, job.error_bytes) if is_error else (OUTPUT, job.output_bytes)
    stem = f"file-{job.id.removeprefix('batch_')}"
    made_s = job.ended_s or job.started_s or job.created_s
    return FileRecord(stem + ending, job.tenant, f"{job.id}{ending}.jsonl", size, made_s, "batch_output")


def _job_of(file: str) -> str:
    return f"batch_{file.removeprefix('file-').removesuffix(OUTPUT).removesuffix(ERRORS)}"


def _is_id(job: str) -> bool:
    return job.isascii() and job.replace("_", "").isalnum() and len(job) <= 64


def _owns(tenant: str | None, owner: str) -> bool:
    return tenant is None or tenant == owner


def _metadata(given: Mapping[str, str]) -> dict[str, str]:
    if len(given) > MOST_METADATA:
        raise InvalidField("metadata", f"has {len(given)} entries; at most {MOST_METADATA} are allowed")
    for name, value in given.items():
        if not isinstance(value, str) or len(name) > MOST_METADATA_KEY or len(value) > MOST_METADATA_VALUE:
            most = f"{MOST_METADATA_KEY} and {MOST_METADATA_VALUE} characters"
            raise InvalidField("metadata", f"{brief_repr(name)}: names and values are strings of at most {most}")
        if escape_surrogates(name + value) != name + value:
            raise InvalidField("metadata", f"{brief_repr(name)}: names and values must not have lone surrogates")
    return dict(given)


def _not_found(text: str) -> DoorError:
    return DoorError(RejectionCode.NOT_FOUND, f"there is {text}")


def _full(text: str) -> DoorError:
    return DoorError(RejectionCode.FULL, text, retry_after_s=60.0)


@contextmanager
def _stores() -> Iterator[None]:
    """Turns errors of etcd and of the store into DoorErrors."""
    try:
        yield
    except FileNotFoundError as error:
        raise _not_found("no such content") from error
    except (EtcdError, OSError) as error:
        text = f"batches cannot be kept just now: {error}"
        raise DoorError(RejectionCode.UNAVAILABLE, text, retry_after_s=1.0) from error
