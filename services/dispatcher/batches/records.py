"""What is kept of batch jobs and files: plain records, and the changes that a job goes through. Pure."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

MOST_ERRORS_SHOWN = 100
"""Bad lines that a job's record tells; the error file has all."""


class JobStatus(StrEnum):
    """A job's state, by OpenAI's words. It is `cancelling` while it is open and has a cancellation (`JobView`)."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


TRANSITIONS: dict[JobStatus, tuple[JobStatus, ...]] = {
    JobStatus.VALIDATING: (JobStatus.IN_PROGRESS, JobStatus.FAILED),
    JobStatus.IN_PROGRESS: (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLED),
    JobStatus.COMPLETED: (),
    JobStatus.FAILED: (),
    JobStatus.EXPIRED: (),
    JobStatus.CANCELLED: (),
}


@dataclass(frozen=True, slots=True)
class LineError:
    """A line of the input that is no request: its number (from 1; 0: the whole file), a code, and what is wrong."""

    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of answered lines: of prompts, of those how many were cached, and of generated texts."""

    input: int = 0
    cached: int = 0
    output: int = 0

    def plus(self, other: "TokenCounts") -> "TokenCounts":
        """The sum."""
        return TokenCounts(self.input + other.input, self.cached + other.cached, self.output + other.output)


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One committed part of a job's results: lines in the order of the input, whole.

    `fence` names the claim whose dispatcher wrote it, and is part of the names of its two objects.
    """

    number: int
    fence: int
    output_bytes: int
    error_bytes: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One batch job. Times are Unix seconds, 0: not yet.

    `total` counts the lines of its input that are not empty, `completed` and `failed` those with a committed result;
    `bad_lines` of the failed ones were no request. The results of all lines that end before byte `offset` of the input
    (line number `lines_read`) lie in `segments` committed segments.
    """

    id: str
    tenant: str
    endpoint: str
    input_file: str
    created_s: float
    window_s: float
    metadata: dict[str, str] = field(default_factory=dict)
    status: JobStatus = JobStatus.VALIDATING
    total: int = 0
    completed: int = 0
    failed: int = 0
    lines_read: int = 0
    offset: int = 0
    segments: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    tokens: TokenCounts = field(default_factory=TokenCounts)
    bad_lines: int = 0
    errors: tuple[LineError, ...] = ()
    started_s: float = 0.0
    ended_s: float = 0.0

    @property
    def expires_s(self) -> float:
        """When its completion window ends."""
        return self.created_s + self.window_s

    def urgent_s(self, share: float) -> float:
        """When the last `share` of its completion window begins."""
        return self.expires_s - share * self.window_s

    @property
    def is_open(self) -> bool:
        """Whether work is left."""
        return bool(TRANSITIONS[self.status])

    def validated(self, total: int, bad_lines: int, errors: tuple[LineError, ...], now_s: float) -> "JobRecord":
        """Its input was scanned."""
        scanned = replace(self._in(JobStatus.IN_PROGRESS), total=total, bad_lines=bad_lines, started_s=now_s)
        return replace(scanned, errors=errors[:MOST_ERRORS_SHOWN])

    def ended(self, status: JobStatus, now_s: float) -> "JobRecord":
        """Nothing is left to do."""
        return replace(self._in(status), ended_s=now_s)

    def failed_with(self, error: LineError, now_s: float) -> "JobRecord":
        """The job cannot go on."""
        return replace(self.ended(JobStatus.FAILED, now_s), errors=(*self.errors[: MOST_ERRORS_SHOWN - 1], error))

    def _in(self, status: JobStatus) -> "JobRecord":
        assert status in TRANSITIONS[self.status], f"{self.id}: {self.status} to {status}"
        return replace(self, status=status)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as clients see it: its record, and when its cancellation was asked for (0: it was not)."""

    job: JobRecord
    cancelling_s: float = 0.0

    @property
    def status(self) -> str:
        """The state by OpenAI's words."""
        return "cancelling" if self.cancelling_s and self.job.is_open else str(self.job.status)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An uploaded file. `purpose` is OpenAI's word for what it is for."""

    id: str
    tenant: str
    filename: str
    bytes: int
    created_s: float
    purpose: str = "batch"
