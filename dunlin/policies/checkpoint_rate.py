"""How much more of the engine's time copies of running sequences may take when slots run short (ConServe 4.4)."""

PRESSURE_FREE_SHARE = 0.5
"""Share of free slots below which copies are made faster: the threshold of ConServe."""


def pressure_share(free_share: float, most_share: float) -> float:
    """The share of the engine's time for copies of victims to be, beside that for failover.

    As in random early detection it grows with the slots in use, from 0 at `PRESSURE_FREE_SHARE` of them free to
    `most_share` at none: little pressure preempts few sequences, and a few that are copied are enough for it.

    Args:
        free_share: slots that are free, or can be at once, of all.
        most_share: the share at full pressure.
    """
    return most_share * min(1.0, max(0.0, 1.0 - free_share / PRESSURE_FREE_SHARE))
