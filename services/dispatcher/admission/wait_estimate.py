"""How long a newcomer would wait: measured from how requests end while others wait. Pure; knows no request.

An idle cluster says nothing about its pace, so only the time between two ends counts with somebody waiting all along.
"""

SAMPLES_KEPT = 32
"""So many of the last ends count, the newer the more."""


class WaitEstimator:
    """Owns the mean time between two ends under load; `each_s` 0: not known yet."""

    def __init__(self) -> None:
        self.interval_s = 0.0
        self._measured = 0
        self._last_s: float | None = None

    def on_served(self, now_s: float, others_wait: bool) -> None:
        """A request that was served left; whether others wait for their turn."""
        if self._last_s is not None and others_wait:
            self._measured = min(self._measured + 1, SAMPLES_KEPT)
            self.interval_s += (now_s - self._last_s - self.interval_s) / self._measured
        self._last_s = now_s if others_wait else None

    def wait_s(self, ahead: int) -> float:
        """Until the last of `ahead` has its turn, and a newcomer comes next; 0 while no pace is known."""
        return self.interval_s * ahead
