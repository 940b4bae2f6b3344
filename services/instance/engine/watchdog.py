"""Detects a stuck engine: by safepoints passed while work is outstanding, never by the duration of a step."""

from dunlin.cores.gap_limit import GapLimit
from dunlin.messages.types import Figure, RejectedOption, Why

_GAPS = 4.0
"""Longest gaps between two safepoints that make a hang: an engine's end costs more than a suspicion."""
SLEPT_AFTER_S = 1.0
"""A longer gap between two checks means that this process slept, not that the engine made no progress; seconds."""


class EngineWatchdog:
    """Remembers the last progress of the engine. `safepoints` is the counter as last read. It is stuck after `most_s`
    without any, or sooner where they came regularly, after `least_s` at the soonest.
    """

    def __init__(self, most_s: float, least_s: float) -> None:
        self.safepoints = 0
        self._limit = GapLimit(least_s, most_s, _GAPS)
        self._watched_s = 0.0
        """Seconds in which engines passed safepoints."""
        self._checked_s = 0.0
        self._progressed_s = 0.0
        self._busy = False

    def on_engine_ready(self) -> None:
        """Another engine computes."""
        self._limit.succeed(self._watched_s)

    def check(self, now_s: float, safepoints: int, outstanding: int) -> Why | None:
        """Take the safepoint counter and the number of outstanding commands; the reason if it is stuck, else None."""
        slept = now_s - self._checked_s > SLEPT_AFTER_S
        if not slept and safepoints != self.safepoints and self._busy:
            self._watched_s += now_s - self._progressed_s
            self._limit.note(self._watched_s, now_s - self._progressed_s)
        if slept or safepoints != self.safepoints or not outstanding or not self._busy:
            self._progressed_s = now_s
        self._checked_s, self.safepoints, self._busy = now_s, safepoints, outstanding > 0
        unchanged_s = now_s - self._progressed_s
        limit_s = self._limit.limit_s(self._watched_s)
        if unchanged_s < limit_s:
            return None
        figures = (
            Figure("unchanged_s", unchanged_s),
            Figure("limit_s", limit_s),
            Figure("outstanding", outstanding),
            Figure("safepoints", safepoints),
        )
        self._busy = False
        self._limit.lengthen(self._watched_s, limit_s)
        return Why(
            "progress", "end the engine", figures, (RejectedOption("wait", "work is outstanding, no safepoint passed"),)
        )
