"""The engine's time that copies may take: a share of wall time, saved up for a while."""

REGION_OVERHEAD_S = 0.001
"""What a region costs besides the copy: naming it, asking for room, the messages to and from engine and kvstore. It
bounds the number of regions where copies alone are so cheap that every few tokens would make one.
"""

BURST_S = 1.0
"""Unused copy time is saved up for at most so long, seconds: after a prefill the copies of a prompt are made one after
the other, where nothing was copied before.
"""


class CopyBudget:
    """Owns the engine's time that was spent and not yet earned by the share, which may change; seconds."""

    def __init__(self) -> None:
        self._debt_s = 0.0
        self._at_s = 0.0

    def has_time(self, now_s: float, share: float) -> bool:
        """Whether a copy may begin, if copies may take `share` of the time since this was asked last."""
        self._debt_s = max(0.0, self._debt_s - share * (now_s - self._at_s))
        self._at_s = now_s
        return share > 0 and self._debt_s <= share * BURST_S

    def spend(self, busy_s: float) -> None:
        """A copy took `busy_s` of the engine's time."""
        self._debt_s += busy_s + REGION_OVERHEAD_S
