"""The numbers that a leader gives to guests and exchanges."""

from dataclasses import dataclass, field

from dunlin.messages.group import number_in_group


class GroupNumbers:
    """Owns the last number of one kind: none is given twice in the life of the instance, also where it leads a group
    anew that it had left. Rooms of engines and members' answers are fenced by them.
    """

    def __init__(self) -> None:
        self._last = 0

    def next(self, group: int) -> int:
        """A number of that group which no guest, or no exchange, had before."""
        self._last += 1
        return number_in_group(group, self._last)


@dataclass(frozen=True, slots=True)
class LeaderNumbers:
    """What an instance numbers as a leader of one group after another."""

    guests: GroupNumbers = field(default_factory=GroupNumbers)
    exchanges: GroupNumbers = field(default_factory=GroupNumbers)
