"""Detects a stuck engine: by safepoints passed while work is outstanding, never by the duration of a step."""

from dunlin.messages.types import Figure, RejectedOption, Why

SLEPT_AFTER_S = 1.0
"""A longer gap between two checks means that this process slept, not that the engine made no progress; seconds."""


class EngineWatchdog:
    """Remembers the last progress of the engine. `safepoints` is the counter as last read."""

    def __init__(self, stuck_s: float) -> None:
        self.safepoints = 0
        self._stuck_s = stuck_s
        self._checked_s = 0.0
        self._progressed_s = 0.0
        self._busy = False

    def check(self, now_s: float, safepoints: int, outstanding: int) -> Why | None:
        """Take the safepoint counter and the number of outstanding commands; the reason if it is stuck, else None."""
        slept = now_s - self._checked_s > SLEPT_AFTER_S
        if slept or safepoints != self.safepoints or not outstanding or not self._busy:
            self._progressed_s = now_s
        self._checked_s, self.safepoints, self._busy = now_s, safepoints, outstanding > 0
        unchanged_s = now_s - self._progressed_s
        if unchanged_s < self._stuck_s:
            return None
        figures = (
            Figure("unchanged_s", unchanged_s),
            Figure("limit_s", self._stuck_s),
            Figure("outstanding", outstanding),
            Figure("safepoints", safepoints),
        )
        self._busy = False
        return Why(
            "progress", "end the engine", figures, (RejectedOption("wait", "work is outstanding, no safepoint passed"),)
        )
