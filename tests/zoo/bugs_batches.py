"""Bugs to plant in the progress of batch jobs."""

from collections.abc import Callable
from dataclasses import replace

from services.dispatcher.batches.line_window import LineWindow, Segment
from services.dispatcher.batches.records import JobRecord
from tests.zoo.plant import Bug, swap


def _all_but_one(original: Callable[[LineWindow, Segment], None], window: LineWindow, segment: Segment) -> None:
    original(window, replace(segment, lines=segment.lines - 1) if segment.lines > 1 else segment)


def _line_short(original: Callable[[Segment, JobRecord], JobRecord], segment: Segment, job: JobRecord) -> JobRecord:
    advanced = original(segment, job)
    at_end = advanced.lines_read == advanced.total
    return advanced if at_end else replace(advanced, lines_read=advanced.lines_read - 1)


BUGS = (
    Bug(
        "committed-lines-stay",
        "the last line of a committed segment stays in the window, and is in the next segment, too",
        ("I10",),
        (swap(LineWindow.commit, _all_but_one),),
        seed=5,
        batch_jobs=True,
    ),
    Bug(
        "cursor-is-a-line-short",
        "a takeover begins a line before the first one that is not committed",
        ("I10",),
        (swap(Segment.advance, _line_short),),
        seed=1,
        batch_jobs=True,
    ),
)
