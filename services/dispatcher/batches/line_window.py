"""Which lines of a claimed job are running, finished or committed: the job's progress beyond its record. Pure.

Lines start in the order of the input and finish in any; committed is always a prefix of the input. A segment is the
results of the next lines of that prefix. It is written as a whole, and only its commit moves the record's cursor: what
a crash loses are lines that run again, never a line that is committed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from services.dispatcher.batches.records import JobRecord, SegmentRecord, TokenCounts


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Lines that may run at once, lines and bytes of results beyond the last commit, and lines of one segment."""

    most_running: int
    most_lines: int
    most_bytes: int
    segment_lines: int


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result line of one input line, with its newline. `is_error`: it belongs into the error file."""

    text: bytes
    is_error: bool = False
    tokens: TokenCounts = field(default_factory=TokenCounts)


@dataclass(slots=True)
class WindowLine:
    """A started line: its number in the input, and the byte after it."""

    number: int
    stop: int
    result: LineResult | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """The results of the next `lines` lines, as bytes of the output file and of the error file."""

    lines: int
    last_line: int
    stop: int
    output: bytes
    errors: bytes
    completed: int
    failed: int
    tokens: TokenCounts

    def record(self, number: int, fence: int) -> SegmentRecord:
        """What is kept of it, as segment `number` of its job."""
        return SegmentRecord(number, fence, len(self.output), len(self.errors))

    def advance(self, job: JobRecord) -> JobRecord:
        """The job's record with this segment committed."""
        return replace(
            job,
            completed=job.completed + self.completed,
            failed=job.failed + self.failed,
            lines_read=self.last_line,
            offset=self.stop,
            segments=job.segments + 1,
            output_bytes=job.output_bytes + len(self.output),
            error_bytes=job.error_bytes + len(self.errors),
            tokens=job.tokens.plus(self.tokens),
        )


class LineWindow:
    """The lines after the last commit, in the order of the input."""

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._lines: deque[WindowLine] = deque()
        self._running: dict[int, WindowLine] = {}
        self._bytes = 0
        self._ready = 0

    @property
    def running(self) -> list[int]:
        """The numbers of the lines that have no result."""
        return list(self._running)

    @property
    def is_empty(self) -> bool:
        """Whether every started line is committed."""
        return not self._lines

    @property
    def ready(self) -> int:
        """How many of the next lines have their results."""
        return self._ready

    @property
    def is_full(self) -> bool:
        """Whether lines must be committed before another may start."""
        limits = self._limits
        return bool(self._lines) and (len(self._lines) >= limits.most_lines or self._bytes >= limits.most_bytes)

    @property
    def can_start(self) -> bool:
        """Whether the limits allow one line more."""
        return len(self._running) < self._limits.most_running and not self.is_full

    def start(self, number: int, stop: int) -> None:
        """The line begins; its number is above all earlier ones."""
        assert not self._lines or number > self._lines[-1].number
        line = WindowLine(number, stop)
        self._lines.append(line)
        self._running[number] = line

    def finish(self, number: int, result: LineResult) -> bool:
        """Take a running line's result; False if it has one already, which stays."""
        line = self._running.pop(number, None)
        if line is None:
            return False
        line.result = result
        self._bytes += len(result.text)
        while self._ready < len(self._lines) and self._lines[self._ready].result is not None:
            self._ready += 1
        return True

    def next_segment(self) -> Segment | None:
        """The results of the lines that are ready, of one segment at most; None: the next line has no result."""
        lines = list(islice(self._lines, min(self._ready, self._limits.segment_lines)))
        return _segment(lines) if lines else None

    def commit(self, segment: Segment) -> None:
        """The segment is committed: forget its lines."""
        for _ in range(segment.lines):
            line = self._lines.popleft()
            assert line.result is not None
            self._bytes -= len(line.result.text)
        self._ready -= segment.lines


def _segment(lines: Sequence[WindowLine]) -> Segment:
    results = [line.result for line in lines if line.result is not None]
    good = [result for result in results if not result.is_error]
    tokens = TokenCounts()
    for result in good:
        tokens = tokens.plus(result.tokens)
    return Segment(
        lines=len(lines),
        last_line=lines[-1].number,
        stop=lines[-1].stop,
        output=b"".join(result.text for result in good),
        errors=b"".join(result.text for result in results if result.is_error),
        completed=len(good),
        failed=len(results) - len(good),
        tokens=tokens,
    )
