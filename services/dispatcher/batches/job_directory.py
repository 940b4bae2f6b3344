"""Which jobs are open, claimed or cancelled, as far as the watch of etcd has told. Pure."""

from collections import Counter
from collections.abc import Collection
from contextlib import suppress

from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent, WatchEvent
from services.dispatcher.batches.job_store import CANCEL, CLAIM, JOBS, RECORD
from services.dispatcher.batches.record_codec import UnreadableRecord, decode_record
from services.dispatcher.batches.records import JobRecord


class JobDirectory:
    """The keys below `JOBS`, as of the last event. What it says is a hint: a claim is decided by etcd."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, float]] = {}
        """(tenant, created) of each open job."""
        self._claimed: set[str] = set()
        self._cancelled: set[str] = set()

    def apply(self, event: WatchEvent) -> None:
        """Take an event of the watch of `JOBS`."""
        match event:
            case PutEvent(item):
                self._put(item)
            case DeletedEvent(key):
                self._delete(key)
            case ResetEvent():
                self._open, self._claimed, self._cancelled = {}, set(), set()
                for item in event.items:
                    self._put(item)

    def next_unclaimed(self, working_on: Collection[str], most_of_tenant: int) -> str | None:
        """The open job to begin next, of those that no dispatcher works on; None: there is none.

        It is the oldest of the tenant with the fewest jobs in `working_on`, so that a tenant with many leaves room for
        others; a tenant with `most_of_tenant` there has its turn later.
        """
        busy = Counter(self._open[job][0] for job in working_on if job in self._open)
        waiting = [
            (busy[tenant], created_s, job)
            for job, (tenant, created_s) in self._open.items()
            if job not in self._claimed and job not in working_on and busy[tenant] < most_of_tenant
        ]
        return min(waiting)[2] if waiting else None

    def is_cancelled(self, job: str) -> bool:
        """Whether the job's cancellation was asked for."""
        return job in self._cancelled

    def _put(self, item: KeyValue) -> None:
        job, part = _split(item.key)
        if part == CLAIM:
            self._claimed.add(job)
        elif part == CANCEL:
            self._cancelled.add(job)
        elif part == RECORD:
            self._put_record(job, item.value)

    def _put_record(self, job: str, value: bytes) -> None:
        self._open.pop(job, None)
        with suppress(UnreadableRecord):
            record = decode_record(value, JobRecord)
            if record.is_open:
                self._open[job] = (record.tenant, record.created_s)

    def _delete(self, key: str) -> None:
        job, part = _split(key)
        if part == CLAIM:
            self._claimed.discard(job)
        elif part == CANCEL:
            self._cancelled.discard(job)
        elif part == RECORD:
            self._open.pop(job, None)


def _split(key: str) -> tuple[str, str]:
    """(job, part) of a key below `JOBS`."""
    job, _, part = key.removeprefix(JOBS).partition("/")
    return job, part
