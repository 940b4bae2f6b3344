"""The starvation bound of batch work: which requests rise because they made no progress for long.

A request that rises is scheduled like an interactive one until it ends. How many have risen at a time is bounded by a
share, so that interactive requests hardly notice. The dispatcher and the instance apply the same rule, each to the
requests that wait with it. Knows no queue and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.messages.types import Figure, RejectedOption, Why

LOOKS_PER_WAIT = 8
"""Batch work is looked through so often within the wait that it is allowed: it rises at most that much later."""
MOST_SECONDS_BETWEEN_LOOKS = 1.0
"""For those that rise by a time of their own, such as the end of a completion window."""

NEVER_S = float("inf")


@dataclass(slots=True)
class Progress:
    """How far a request had got when it was last looked at (`done`, in tokens), and when it was first seen there."""

    done: int
    since_s: float

    def stalled_s(self, done: int, now_s: float) -> float:
        """Seconds without progress, for a request that is at `done` now: what is computed again is no progress."""
        if done > self.done:
            self.done, self.since_s = done, now_s
        return now_s - self.since_s


@dataclass(frozen=True, slots=True)
class StarvationBound:
    """`batch_wait_s` without progress make a request rise (0: none rises by that); `risen_share` bounds how many."""

    batch_wait_s: float
    risen_share: float

    @property
    def look_interval_s(self) -> float:
        """Seconds between two looks at the batch work that waits."""
        return min(MOST_SECONDS_BETWEEN_LOOKS, self.batch_wait_s / LOOKS_PER_WAIT or NEVER_S)

    def is_starved(self, stalled_s: float) -> bool:
        """Whether a request that made no progress for so long is to rise."""
        return 0 < self.batch_wait_s <= stalled_s

    def most_risen(self, of: int) -> int:
        """How many of `of` requests may have risen at a time: one at least, or none would ever rise."""
        return max(1, int(self.risen_share * of))


def choose_rising(stalled_s: Sequence[float], room: int) -> list[int]:
    """The indices of those that rise, longest stall first, if `room` more may; ties go to the first."""
    return sorted(range(len(stalled_s)), key=lambda index: -stalled_s[index])[: max(0, room)]


def why_it_rises(cause: str, stalled_s: float, risen: int, most: int) -> Why:
    """The reason of a rise by `cause`, when `risen` others of at most `most` had risen."""
    figures = (Figure("stalled_s", stalled_s), Figure("risen", risen), Figure("most_risen", most))
    return Why("starvation bound", "schedule as interactive", figures, (RejectedOption("wait", cause),))
