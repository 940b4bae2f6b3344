"""Jobs and files in etcd. A job is worked on by one dispatcher at a time: the one whose claim stands.

    /dunlin/batches/jobs/ID/record    the job's record
    /dunlin/batches/jobs/ID/claim     under its dispatcher's lease; its create revision is the fence
    /dunlin/batches/jobs/ID/cancel    that its cancellation was asked for, and when
    /dunlin/batches/segments/ID/N     one committed segment of its results
    /dunlin/batches/files/ID          an uploaded file

Every write of a claimed job is a transaction that compares the claim's create revision, so that a dispatcher that lost
its claim, and may not know it, changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdUnavailable
from dunlin.membership.txn import Compare, CreatedAt, DeleteOp, GetOp, ModifiedAt, Operation, PutOp
from dunlin.membership.values import KeyValue
from dunlin.membership.watch import PrefixWatch, WatchEvent
from services.dispatcher.batches.record_codec import UnreadableRecord, decode_record, encode_record
from services.dispatcher.batches.records import (
    FileRecord,
    JobRecord,
    JobView,
    SegmentRecord,
)

R = TypeVar("R")
PREFIX = "/dunlin/batches/"
JOBS = f"{PREFIX}jobs/"
FILES = f"{PREFIX}files/"
RECORD, CLAIM, CANCEL = "record", "claim", "cancel"
RETRY_S = 0.2
_CREATE_TRIES = 3
_CANCEL_TRIES = 20


class ClaimLost(Exception):
    """Another dispatcher may work on the job now, or the job is gone."""


@dataclass(slots=True)
class Claim:
    """A job claimed by this process: its record as of etcd's `revision`. `fence` rises with every claim of the job."""

    job: JobRecord
    revision: int
    fence: int


def job_key(job: str, part: str = RECORD) -> str:
    """The key of one part of a job."""
    return f"{JOBS}{job}/{part}"


def _segments(job: str) -> str:
    return f"{PREFIX}segments/{job}/"


class JobStore:
    """Reads and writes of jobs and files. All methods raise EtcdError, except where a retry is safe and told so."""

    def __init__(self, etcd: EtcdClient, retry_s: float = RETRY_S) -> None:
        self.etcd = etcd
        self._retry_s = retry_s

    # --- jobs ---

    def watch(self) -> AsyncIterator[WatchEvent]:
        """All that happens to jobs, claims and cancellations, beginning with what there is. Never ends."""
        return aiter(PrefixWatch(self.etcd, JOBS))

    async def create(self, job: JobRecord) -> None:
        """Write a new job. Tried again where the answer is lost: a caller that did so would create another one."""
        put: list[Operation] = [PutOp(job_key(job.id), encode_record(job))]
        is_new: list[Compare] = [CreatedAt(job_key(job.id), 0)]  # else an earlier try was carried out
        for _ in range(_CREATE_TRIES - 1):
            with suppress(EtcdUnavailable):
                await self.etcd.txn(is_new, put)
                return
            await asyncio.sleep(self._retry_s)
        await self.etcd.txn(is_new, put)

    async def get(self, job: str) -> JobView | None:
        """A job as clients see it; None: there is none."""
        found = {item.key: item for item in (await self.etcd.get_prefix(f"{JOBS}{job}/")).items}
        return _view(found, job)

    async def list_jobs(self) -> list[JobView]:
        """All jobs, newest first."""
        found = {item.key: item for item in (await self.etcd.get_prefix(JOBS)).items}
        ids = [key.split("/")[-2] for key in found if key.endswith(f"/{RECORD}")]
        views = [view for view in (_view(found, one) for one in ids) if view is not None]
        return sorted(views, key=lambda view: (view.job.created_s, view.job.id), reverse=True)

    async def cancel(self, job: str, now_s: float) -> JobView | None:
        """Ask for the cancellation of an open job; the job as it is then. One that is not open is not changed."""
        for _ in range(_CANCEL_TRIES):
            item = await self.etcd.get(job_key(job))
            if item is None or not decode_record(item.value, JobRecord).is_open:
                break
            # A commit of its dispatcher may come between: the cancellation must not follow the last one.
            unchanged: list[Compare] = [ModifiedAt(item.key, item.mod_revision), CreatedAt(job_key(job, CANCEL), 0)]
            if (await self.etcd.txn(unchanged, [PutOp(job_key(job, CANCEL), encode_record(now_s))])).succeeded:
                break
            if await self.etcd.get(job_key(job, CANCEL)) is not None:
                break
        return await self.get(job)

    async def remove(self, job: str) -> None:
        """Forget a job that is not open: segments, cancellation, and the record last, by which the others are found."""
        keys = [*(item.key for item in await self._segment_items(job)), job_key(job, CANCEL), job_key(job)]
        for start in range(0, len(keys), 100):  # etcd takes 128 operations at once
            await self.etcd.txn([], [DeleteOp(key) for key in keys[start : start + 100]])

    # --- claims ---

    async def claim(self, job: str, lease_id: int, claimer: str) -> Claim | None:
        """Claim an open job under a lease; None: another dispatcher has it, or it is not open."""
        item = await self.etcd.get(job_key(job))
        if item is None or not decode_record(item.value, JobRecord).is_open:
            return None
        free: list[Compare] = [CreatedAt(job_key(job, CLAIM), 0), ModifiedAt(item.key, item.mod_revision)]
        done = await self.etcd.txn(free, [PutOp(job_key(job, CLAIM), claimer.encode(), lease_id)])
        if not done.succeeded:
            return None
        return Claim(decode_record(item.value, JobRecord), item.mod_revision, done.revision)

    async def commit(self, claim: Claim, job: JobRecord, segment: SegmentRecord | None = None) -> None:
        """Write a claimed job's new record, and with it, in the same transaction, a segment of its results.

        Waits for etcd as long as it takes. Raises ClaimLost when another dispatcher may have the job.
        """
        value = encode_record(job)
        puts: list[Operation] = [PutOp(job_key(job.id), value)]
        if segment is not None:
            puts.append(PutOp(f"{_segments(job.id)}{segment.number:08d}", encode_record(segment)))
        while True:
            try:
                claim.revision = await self._commit(claim, value, puts)
                claim.job = job
                return
            except EtcdUnavailable:
                await asyncio.sleep(self._retry_s)

    async def _commit(self, claim: Claim, value: bytes, puts: list[Operation]) -> int:
        """The revision of the record that holds `value` now."""
        record, claimed = job_key(claim.job.id), job_key(claim.job.id, CLAIM)
        ours: list[Compare] = [CreatedAt(claimed, claim.fence), ModifiedAt(record, claim.revision)]
        done = await self.etcd.txn(ours, puts, [GetOp(record), GetOp(claimed)])
        if done.succeeded:
            return done.revision
        (found, holder) = done.reads
        # An earlier try may have been carried out although its answer was lost.
        if found and holder and holder[0].create_revision == claim.fence and found[0].value == value:
            return found[0].mod_revision
        raise ClaimLost(claim.job.id)

    # --- segments ---

    async def segments(self, job: str) -> list[SegmentRecord]:
        """The committed segments of a job, in order."""
        return [decode_record(item.value, SegmentRecord) for item in await self._segment_items(job)]

    async def _segment_items(self, job: str) -> tuple[KeyValue, ...]:
        return (await self.etcd.get_prefix(_segments(job))).items

    # --- files ---

    async def add_file(self, file: FileRecord) -> None:
        """Write a file's record; its content is there already."""
        await self.etcd.put(f"{FILES}{file.id}", encode_record(file))

    async def get_file(self, file: str) -> FileRecord | None:
        """A file's record; None: there is none."""
        item = await self.etcd.get(f"{FILES}{file}")
        return _readable(item, FileRecord) if item is not None else None

    async def list_files(self) -> list[FileRecord]:
        """All uploaded files, newest first."""
        items = (await self.etcd.get_prefix(FILES)).items
        files = [_readable(item, FileRecord) for item in items]
        return sorted(filter(None, files), key=lambda file: (file.created_s, file.id), reverse=True)

    async def remove_file(self, file: str) -> None:
        """Forget a file's record."""
        await self.etcd.delete(f"{FILES}{file}")


def _view(found: dict[str, KeyValue], job: str) -> JobView | None:
    item = found.get(job_key(job))
    record = _readable(item, JobRecord) if item is not None else None
    if record is None:
        return None
    cancelled = found.get(job_key(job, CANCEL))
    asked_s = _readable(cancelled, float) if cancelled is not None else None
    return JobView(record, asked_s or 0.0)


def _readable(item: KeyValue, kind: type[R]) -> R | None:
    """The record; None: this version cannot read it."""
    with suppress(UnreadableRecord):
        return decode_record(item.value, kind)
    return None
