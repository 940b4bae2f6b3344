"""Which jobs are open, claimed or cancelled, as far as the watch of etcd has told. Pure."""

from contextlib import suppress

from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent, WatchEvent
from services.dispatcher.batches.job_store import CANCEL, CLAIM, JOBS, RECORD
from services.dispatcher.batches.record_codec import UnreadableRecord, decode_record
from services.dispatcher.batches.records import JobRecord


class JobDirectory:
    """The keys below `JOBS`, as of the last event. What it says is a hint: a claim is decided by etcd."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
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

    def unclaimed(self) -> list[str]:
        """The open jobs that no dispatcher works on, oldest first."""
        return sorted(self._open.keys() - self._claimed, key=lambda job: (self._open[job], job))

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
                self._open[job] = record.created_s

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
