"""The sequences of a group, by number and in their order. Knows no message, and changes none of them."""

from collections.abc import Iterator
from operator import attrgetter

from services.instance.group.leading.numbers import GroupNumbers
from services.instance.group.leading.spread import SpreadSequence
from services.instance.sequence.sequence import Sequence as InstanceSequence


class SpreadTable:
    """Owns a group's sequences, by number. In order: see `SpreadSequence.turn`."""

    def __init__(self, numbers: GroupNumbers) -> None:
        self._by_number: dict[int, SpreadSequence] = {}
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[SpreadSequence]:
        return iter(list(self._by_number.values()))

    def next_number(self, group: int) -> int:
        """A number that no other sequence of a group has, or had."""
        return self._numbers.next(group)

    def add(self, sequence: InstanceSequence) -> None:
        """A new one, which waits for slots."""
        self._by_number[sequence.number] = SpreadSequence(sequence)

    def remove(self, spread: SpreadSequence) -> None:
        """It has ended, and no member has anything of it."""
        del self._by_number[spread.number]

    def by_number(self, number: int) -> SpreadSequence | None:
        """The one of that number."""
        return self._by_number.get(number)

    def live(self) -> list[SpreadSequence]:
        """Those that have guests or open some, in order."""
        return sorted((each for each in self._by_number.values() if each.is_live), key=attrgetter("turn"))

    def waiting(self) -> list[SpreadSequence]:
        """Those that wait for slots, in order."""
        return sorted((each for each in self._by_number.values() if each.is_waiting), key=attrgetter("turn"))

    def ended(self) -> list[SpreadSequence]:
        """Those of which no more tokens are wanted."""
        return [each for each in self._by_number.values() if not each.is_live and not each.is_waiting]

    def rows(self) -> dict[int, int]:
        """By member: how many sequences' tokens it generates."""
        found: dict[int, int] = {}
        for spread in self._by_number.values():
            if spread.is_live and spread.master >= 0:
                found[spread.master] = found.get(spread.master, 0) + 1
        return found
