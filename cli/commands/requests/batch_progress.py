"""A batch job as text: its progress bar, with an ETA from the measured rate of finished lines, and its end."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from dunlin.client import BatchJob

WIDTH = 30
RATE_OVER_S = 60.0
"""The rate is measured over the last so many seconds."""


class FinishRate:
    """Lines finished per second, measured over the last `RATE_OVER_S`. Pure."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, finished: int) -> None:
        """So many lines are finished now."""
        self._seen.append((now_s, finished))
        # The oldest kept look is the last one that is old enough: jobs commit in steps.
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - RATE_OVER_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        """The rate; 0: not known yet."""
        if len(self._seen) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class BatchProgress:
    """Writes one line again and again on a terminal, else a line whenever the job has moved."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._rate = FinishRate()
        self._last = ""

    def update(self, job: "BatchJob") -> None:
        """Show the job."""
        self._rate.add(self._clock(), job.completed + job.failed)
        line = bar(job, self._rate.per_s)
        if self._out.isatty():
            self._out.write(f"\r{line}\x1b[K")
        elif line != self._last:
            self._out.write(f"{line}\n")
        self._out.flush()
        self._last = line

    def end(self) -> None:
        """Leave the bar's line."""
        if self._last and self._out.isatty():
            self._out.write("\n")


def bar(job: "BatchJob", per_s: float) -> str:
    """The progress bar."""
    if not job.total:
        return f"{job.status}: the lines are read"
    finished = job.completed + job.failed
    filled = WIDTH * finished // job.total
    text = f"{job.status} [{'#' * filled}{'.' * (WIDTH - filled)}] {finished}/{job.total}"
    text += f", {job.failed} failed" if job.failed else ""
    if per_s <= 0 or not job.is_open:
        return text
    return f"{text}, {per_s:.1f} lines/s, {_duration((job.total - finished) / per_s)} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def show(job: "BatchJob") -> str:
    """What is to be known of a job, in a few lines."""
    lines = [f"{job.batch}: {job.status}, {job.total} lines, {job.completed} answered, {job.failed} failed"]
    lines.append(f"tokens: {job.input_tokens} in prompts ({job.cached_tokens} cached), {job.output_tokens} generated")
    lines += [
        f"line {error.line}: {error.code}: {error.message}" if error.line else error.message for error in job.errors
    ]
    if job.bad_lines > len(job.errors):
        lines.append(f"and {job.bad_lines - len(job.errors)} more lines that are no request")
    return "\n".join(lines)
