"""Whether a waiting sequence may start before an older one that waits for slots: functions over slots.

Knows no sequence and no queue.
"""

from collections.abc import Callable
from dataclasses import dataclass

SHORTER_TIMES = 8
"""What overtakes may grow to at most one of so many parts of what it overtakes."""

PASSING_SHARE = 1 / 8
"""Share of the slots that those which overtook may grow to together: the one that waits starts later by the time until
so many more slots are free."""

GIVEN_SHARE = 7 / 8
"""Share of the slots that those and the one that waits may grow to: a new sequence leaves the rest to the growth of
others. So it starts at last when those before it have ended, however many shorter ones come."""


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


def shorter(overtaking: Overtaking) -> bool:
    """A much shorter one starts, while all that did need a small share of the slots and leave the rest to the one that
    waits.

    A long prompt that waits for slots would make chat wait for as long; PecSched (5.1) lets short ones go first, too.
    """
    passing_slots = overtaking.ahead_slots + overtaking.slots
    return (
        SHORTER_TIMES * overtaking.slots <= overtaking.blocked_slots
        and passing_slots <= PASSING_SHARE * overtaking.capacity
        and passing_slots + overtaking.blocked_slots <= GIVEN_SHARE * overtaking.capacity
    )


OVERTAKE_POLICIES: dict[str, OvertakePolicy] = {"never": never, "shorter": shorter}
