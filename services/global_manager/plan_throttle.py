"""How soon after one plan the next may be made: a plan reads every member, and thousands may join one by one.

Owns the time of the last plan and the timer. Knows no plan and no member.
"""

from dataclasses import dataclass

from dunlin.effects import After


@dataclass(frozen=True, slots=True)
class PlanDue:
    """Time to plan, unless it was done meanwhile."""

    counter: int


class PlanThrottle:
    """In a small fleet every change is planned for at once; beyond `small_fleet` members, at most every `member_s` for
    each one more.
    """

    def __init__(self, member_s: float, small_fleet: int) -> None:
        self._member_s = member_s
        self._small_fleet = small_fleet
        self._made_s = float("-inf")
        self._counter = 0
        self._waits = False

    def plan_made(self, now_s: float) -> None:
        """There is a new plan."""
        self._made_s = now_s
        self._counter += 1
        self._waits = False

    def is_too_soon(self, now_s: float, members: int) -> bool:
        """Whether the last one is too young for another."""
        return members > self._small_fleet and self._due_s(members) > now_s

    def delay(self, now_s: float, members: int) -> list[After] | None:
        """None: plan now. Else the timer to set, if none runs."""
        if not self.is_too_soon(now_s, members):
            return None
        if self._waits:
            return []
        self._waits = True
        return [After(self._due_s(members) - now_s, PlanDue(self._counter))]

    def is_due(self, message: PlanDue) -> bool:
        """Whether this is the timer that was set last, and nothing was planned since."""
        return self._waits and message.counter == self._counter

    def _due_s(self, members: int) -> float:
        return self._made_s + self._member_s * (members - self._small_fleet)
