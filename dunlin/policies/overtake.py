"""Whether a waiting sequence may start before an older one that waits for slots: functions over slots.

Knows no sequence and no queue.
"""

from collections.abc import Callable
from dataclasses import dataclass

BACKFILL_SHARE = 7 / 8
"""Share of the slots that are given away: a new sequence starts only where some are left for the growth of others."""


@dataclass(frozen=True, slots=True)
class Overtaking:
    """A sequence that fits would start before one that does not, of `capacity` slots in all.

    They may grow to `slots` and `blocked_slots`; those that came after the one that waits and have started may grow to
    `ahead_slots` together.
    """

    slots: int
    blocked_slots: int
    ahead_slots: int
    capacity: int


OvertakePolicy = Callable[[Overtaking], bool]


def never(overtaking: Overtaking) -> bool:
    """Nothing starts before what came earlier."""
    return False


def backfill(overtaking: Overtaking) -> bool:
    """What fits beside the one that waits starts: that one waits only for those that were there before it, as if none
    had overtaken it.

    A long prompt that waits for slots would make chat wait for as long. In batch queues of clusters this is known as
    backfilling (EASY, Lifka 1995).
    """
    needed = overtaking.blocked_slots + overtaking.ahead_slots + overtaking.slots
    return needed <= BACKFILL_SHARE * overtaking.capacity


OVERTAKE_POLICIES: dict[str, OvertakePolicy] = {"never": never, "backfill": backfill}
