"""Who may be asked, best first in a policy's order: kept up to date as single instances change, never looked through.

Among instances of one size the policy's rank decides alone, whatever the request: so the best few of each size, and
those that hold the request's beginning, are all that the policy has to compare. Knows no view, stream or request.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge

from dunlin.effects import Address
from dunlin.policies.dispatch import ALTERNATIVES_KEPT, Candidate, Order

KEPT = 1 + ALTERNATIVES_KEPT
"""Of each size: the chosen one and those that a reason names beside it."""


def _nothing(address: Address) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Held:
    """How many of a request's first tokens instances hold: `few` hold what is said there, nobody else more than `most`,
    and `of` says it of anyone.
    """

    few: Mapping[Address, int] = field(default_factory=dict)
    most: int = 0
    of: Callable[[Address], int] = _nothing


NOTHING_HELD = Held()

_Shape = tuple[int, int]
"""(capacity in slots, limit)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An instance that may be asked, and the longest sequence that it takes. `number`: of two equals the lower one is
    first. `is_short`: its queue is, so that it may be asked for more than is free there.
    """

    number: int
    address: Address
    candidate: Candidate
    limit: int
    is_short: bool

    @property
    def shape(self) -> _Shape:
        """Its size."""
        return self.candidate.capacity_slots, self.limit

    def takes(self, slots: int) -> bool:
        """Whether it may be asked for so many."""
        return self.is_short or self.candidate.free_slots >= slots


@dataclass(slots=True)
class _Size:
    """The instances of one capacity and limit, as sorted pairs: (rank, number), and (free slots, number) of those
    whose queue is not short.
    """

    short: list[tuple[int, int]] = field(default_factory=list)
    long: list[tuple[int, int]] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)

    def has_room(self, slots: int) -> bool:
        """Whether any of them takes so many."""
        return bool(self.short) or (bool(self.free) and self.free[-1][0] >= slots)

    def ranked(self, slots: int) -> Iterator[tuple[int, int]]:
        """(rank, number), best first; of those with a long queue only if one of them has so many slots."""
        if self.free and self.free[-1][0] >= slots:
            return merge(self.short, self.long)
        return iter(self.short)


class Ranking:
    """Owns the order. An entry is put, put anew when anything about it changed, and dropped."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._entries: dict[int, Entry] = {}
        self._numbers: dict[Address, int] = {}
        self._sizes: dict[_Shape, _Size] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """It may be asked, and is like this now."""
        before = self._entries.get(entry.number)
        if before == entry:
            return
        if before is not None:
            self.drop(entry.number)
        self._entries[entry.number] = entry
        self._numbers[entry.address] = entry.number
        size = self._sizes.setdefault(entry.shape, _Size())
        place = (self._order.rank(entry.candidate), entry.number)
        if entry.is_short:
            insort(size.short, place)
        else:
            insort(size.long, place)
            insort(size.free, (entry.candidate.free_slots, entry.number))

    def drop(self, number: int) -> None:
        """It may not be asked now."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        del self._numbers[entry.address]
        size = self._sizes[entry.shape]
        place = (self._order.rank(entry.candidate), number)
        if entry.is_short:
            _remove(size.short, place)
        else:
            _remove(size.long, place)
            _remove(size.free, (entry.candidate.free_slots, number))
        if not size.short and not size.long:
            del self._sizes[entry.shape]

    def has_room(self, slots: int) -> bool:
        """Whether anybody may be asked for so many."""
        return any(size.has_room(slots) for size in self._sizes.values())

    def best(self, slots: int, longest: int, unfit: list[Address], held: Held) -> list[Entry]:
        """The best of each size that may be asked for `slots` now and `longest` tokens in the end, lowest number first.

        Every policy of this order chooses among them as among all, and finds the same next best.
        """
        holders: dict[_Shape, dict[int, int]] = {}
        for address, tokens in held.few.items():
            number = self._numbers.get(address)
            if number is not None:
                holders.setdefault(self._entries[number].shape, {})[number] = tokens
        found: list[int] = []
        for shape, size in self._sizes.items():
            if shape[1] >= longest:
                found += self._best_of(size, slots, unfit, holders.get(shape, {}), held)
        entries = [self._entries[number] for number in sorted(found)]
        return [
            replace(entry, candidate=replace(entry.candidate, held_tokens=tokens)) if tokens else entry
            for entry, tokens in ((entry, held.of(entry.address)) for entry in entries)
        ]

    def _best_of(self, size: _Size, slots: int, unfit: list[Address], holders: dict[int, int], held: Held) -> list[int]:
        """The best of one size: of its holders, and of the others in their order until nobody can be better."""
        weight = self._order.held_weight
        best: list[tuple[int, int]] = []
        for number, tokens in holders.items():
            entry = self._entries[number]
            if entry.takes(slots) and entry.address not in unfit:
                insort(best, (self._order.rank(entry.candidate) - weight * tokens, number))
        del best[KEPT:]
        for rank, number in size.ranked(slots):
            if len(best) == KEPT and (rank - weight * held.most, number) > best[-1]:
                break
            entry = self._entries[number]
            if number in holders or not entry.takes(slots) or entry.address in unfit:
                continue
            insort(best, (rank - weight * held.of(entry.address) if weight else rank, number))
            del best[KEPT:]
        return [number for _, number in best]


def _remove(places: list[tuple[int, int]], place: tuple[int, int]) -> None:
    del places[bisect_left(places, place)]
