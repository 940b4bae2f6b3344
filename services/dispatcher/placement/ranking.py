"""Who may be asked, best first in a policy's order: kept up to date as single instances change, never looked through.

Among instances of one size the policy's rank decides alone, whatever the request: so the best few of each size, and
those that hold the request's beginning, are all that the policy has to compare. Knows no view, stream or request.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge

from dunlin.effects import Address
from dunlin.policies.dispatch import MAX_ALTERNATIVES, CandidateOrder, DispatchCandidate

KEPT_PER_SHAPE = 1 + MAX_ALTERNATIVES
"""Of each size: the chosen one and those that a reason names beside it."""


def _nothing(address: Address) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """How many of a request's first tokens instances hold: `few` hold what is said there, nobody else more than `most`,
    and `of` says it of anyone.
    """

    holders: Mapping[Address, int] = field(default_factory=dict)
    most_elsewhere: int = 0
    tokens_at: Callable[[Address], int] = _nothing


NO_PREFIX_HITS = PrefixHits()

_Shape = tuple[int, int]
"""(capacity in slots, limit)."""


@dataclass(frozen=True, slots=True)
class RankedInstance:
    """An instance that may be asked, and the longest sequence that it takes. `number`: of two equals the lower one is
    first. `is_short`: its queue is, so that it may be asked for more than is free there.
    """

    number: int
    address: Address
    candidate: DispatchCandidate
    max_length: int
    has_short_queue: bool

    @property
    def shape(self) -> _Shape:
        """Its size."""
        return self.candidate.capacity_slots, self.max_length

    def fits(self, slots: int) -> bool:
        """Whether it may be asked for so many."""
        return self.has_short_queue or self.candidate.free_slots >= slots


@dataclass(slots=True)
class _ShapeGroup:
    """The instances of one capacity and limit, as sorted pairs: (rank, number), and (free slots, number) of those
    whose queue is not short.
    """

    short_queue: list[tuple[int, int]] = field(default_factory=list)
    long_queue: list[tuple[int, int]] = field(default_factory=list)
    free_slots: list[tuple[int, int]] = field(default_factory=list)

    def has_room(self, slots: int) -> bool:
        """Whether any of them takes so many."""
        return bool(self.short_queue) or (bool(self.free_slots) and self.free_slots[-1][0] >= slots)

    def ranked(self, slots: int) -> Iterator[tuple[int, int]]:
        """(rank, number), best first; of those with a long queue only if one of them has so many slots."""
        if self.free_slots and self.free_slots[-1][0] >= slots:
            return merge(self.short_queue, self.long_queue)
        return iter(self.short_queue)


class InstanceRanking:
    """Owns the order. An entry is put, put anew when anything about it changed, and dropped."""

    def __init__(self, order: CandidateOrder) -> None:
        self._order = order
        self._entries: dict[int, RankedInstance] = {}
        self._numbers: dict[Address, int] = {}
        self._shapes: dict[_Shape, _ShapeGroup] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: RankedInstance) -> None:
        """It may be asked, and is like this now."""
        before = self._entries.get(entry.number)
        if before == entry:
            return
        if before is not None:
            self.remove(entry.number)
        self._entries[entry.number] = entry
        self._numbers[entry.address] = entry.number
        size = self._shapes.setdefault(entry.shape, _ShapeGroup())
        place = (self._order.rank(entry.candidate), entry.number)
        if entry.has_short_queue:
            insort(size.short_queue, place)
        else:
            insort(size.long_queue, place)
            insort(size.free_slots, (entry.candidate.free_slots, entry.number))

    def remove(self, number: int) -> None:
        """It may not be asked now."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        del self._numbers[entry.address]
        size = self._shapes[entry.shape]
        place = (self._order.rank(entry.candidate), number)
        if entry.has_short_queue:
            _remove(size.short_queue, place)
        else:
            _remove(size.long_queue, place)
            _remove(size.free_slots, (entry.candidate.free_slots, number))
        if not size.short_queue and not size.long_queue:
            del self._shapes[entry.shape]

    def has_room(self, slots: int) -> bool:
        """Whether anybody may be asked for so many."""
        return any(size.has_room(slots) for size in self._shapes.values())

    def best(self, slots: int, longest: int, unfit: list[Address], held: PrefixHits) -> list[RankedInstance]:
        """The best of each size that may be asked for `slots` now and `longest` tokens in the end, lowest number first.

        Every policy of this order chooses among them as among all, and finds the same next best.
        """
        holders: dict[_Shape, dict[int, int]] = {}
        for address, tokens in held.holders.items():
            number = self._numbers.get(address)
            if number is not None:
                holders.setdefault(self._entries[number].shape, {})[number] = tokens
        found: list[int] = []
        for shape, size in self._shapes.items():
            if shape[1] >= longest:
                found += self._best_of(size, slots, unfit, holders.get(shape, {}), held)
        entries = [self._entries[number] for number in sorted(found)]
        return [
            replace(entry, candidate=replace(entry.candidate, cached_tokens=tokens)) if tokens else entry
            for entry, tokens in ((entry, held.tokens_at(entry.address)) for entry in entries)
        ]

    def _best_of(
        self, size: _ShapeGroup, slots: int, unfit: list[Address], holders: dict[int, int], held: PrefixHits
    ) -> list[int]:
        """The best of one size: of its holders, and of the others in their order until nobody can be better."""
        weight = self._order.cached_weight
        best: list[tuple[int, int]] = []
        for number, tokens in holders.items():
            entry = self._entries[number]
            if entry.fits(slots) and entry.address not in unfit:
                insort(best, (self._order.rank(entry.candidate) - weight * tokens, number))
        del best[KEPT_PER_SHAPE:]
        for rank, number in size.ranked(slots):
            if len(best) == KEPT_PER_SHAPE and (rank - weight * held.most_elsewhere, number) > best[-1]:
                break
            entry = self._entries[number]
            if number in holders or not entry.fits(slots) or entry.address in unfit:
                continue
            insort(best, (rank - weight * held.tokens_at(entry.address) if weight else rank, number))
            del best[KEPT_PER_SHAPE:]
        return [number for _, number in best]


def _remove(places: list[tuple[int, int]], place: tuple[int, int]) -> None:
    del places[bisect_left(places, place)]
