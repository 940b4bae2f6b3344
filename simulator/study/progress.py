"""The progress line of a study on a terminal; all its runs share the line."""

from collections.abc import Callable
from typing import TextIO

from dunlin.workload.loadgen.progress_line import ProgressLine, bar

Progress = Callable[[float], None]
"""Called with the share of the requests that ended, 0 to 1."""


class StudyProgress:
    """The line of a study of `total` runs. Nothing is written unless the stream is a terminal."""

    def __init__(self, stream: TextIO, total: int, clock: Callable[[], float]) -> None:
        self._line = ProgressLine(stream) if stream.isatty() else None
        self._total = total
        self._clock = clock
        self._start_s = clock()
        self._next_s = 0.0
        self._done = 0

    def show(self, label: str, share: float) -> None:
        """Show the current run's label and its share, 0 to 1; at most ten times a second."""
        now_s = self._clock() - self._start_s
        if self._line is None or (now_s < self._next_s and share < 1):
            return
        self._next_s = now_s + 0.1
        text = f"{bar(share)} {share:4.0%}  {label}  ({self._done + 1} of {self._total}, {now_s:.0f} s)"
        self._line.show(now_s, text)

    def finished(self) -> None:
        """Count a run that ended."""
        self._done += 1

    def close(self) -> None:
        """End the line."""
        if self._line is not None:
            self._line.close()
