"""How long a new request would wait for its turn, from how fast requests end while others wait. Pure; knows no request.

An idle cluster ends requests as slowly as they arrive, which says nothing about how fast it could: only an interval
between two ends during which a request waited all along is measured.
"""

SAMPLES_KEPT = 32
"""The estimate averages over about this many of the last intervals, the newer ones weighing more."""


class WaitEstimator:
    """Owns `interval_s`, the mean seconds between two ends under load; 0: not known yet."""

    def __init__(self) -> None:
        self.interval_s = 0.0
        self._measured = 0
        self._last_s: float | None = None

    def on_served(self, now_s: float, others_wait: bool) -> None:
        """A dispatched request ended at `now_s`. `others_wait`: at least one request waits now."""
        if self._last_s is not None and others_wait:
            self._measured = min(self._measured + 1, SAMPLES_KEPT)
            self.interval_s += (now_s - self._last_s - self.interval_s) / self._measured
        self._last_s = now_s if others_wait else None

    def wait_s(self, ahead: int) -> float:
        """Seconds until `ahead` requests have had their turn; 0 while `interval_s` is not known."""
        return self.interval_s * ahead
