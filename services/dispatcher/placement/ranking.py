"""The candidate instances in a policy's order, kept sorted as single instances change and never scanned as a whole.

Among instances of one shape (capacity, maximum length) the policy's rank alone decides, whatever the request: the best
few of each shape, and the instances that hold the request's prefix, are all that the policy has to compare. Knows no
view, stream or request.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge

from dunlin.effects import Address
from dunlin.messages.types import MAX_ALTERNATIVES
from dunlin.policies.dispatch import CandidateOrder, DispatchCandidate

KEPT_PER_SHAPE = 1 + MAX_ALTERNATIVES
"""Candidates of each shape: the chosen one and the alternatives that its reason names."""


def _nothing(address: Address) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """How many of a request's first tokens the instances hold.

    `holders` are listed with their tokens; no other instance holds more than `most_elsewhere`; `tokens_at` computes it
    for any instance.
    """

    holders: Mapping[Address, int] = field(default_factory=dict)
    most_elsewhere: int = 0
    tokens_at: Callable[[Address], int] = _nothing


NO_PREFIX_HITS = PrefixHits()

_Shape = tuple[int, int]
"""(capacity in slots, tokens of the longest sequence)."""


@dataclass(frozen=True, slots=True)
class RankedInstance:
    """A candidate and the longest sequence that it takes, in tokens.

    `number` breaks ties: the lower one is first. `has_short_queue`: requests may wait there, so that one may need more
    slots than are free.
    """

    number: int
    address: Address
    candidate: DispatchCandidate
    max_length: int
    has_short_queue: bool

    @property
    def shape(self) -> _Shape:
        """(capacity in slots, tokens of the longest sequence)."""
        return self.candidate.capacity_slots, self.max_length

    def fits(self, slots: int) -> bool:
        """Whether a request of `slots` tokens may be dispatched there now."""
        return self.has_short_queue or self.candidate.free_slots >= slots


@dataclass(slots=True)
class _ShapeGroup:
    """The candidates of one shape as sorted pairs: (rank, number) by queue, and (free slots, number) of long queues."""

    short_queue: list[tuple[int, int]] = field(default_factory=list)
    long_queue: list[tuple[int, int]] = field(default_factory=list)
    free_slots: list[tuple[int, int]] = field(default_factory=list)

    def has_room(self, slots: int) -> bool:
        """Whether any candidate of the shape takes a request of `slots` tokens now."""
        return bool(self.short_queue) or (bool(self.free_slots) and self.free_slots[-1][0] >= slots)

    def ranked(self, slots: int) -> Iterator[tuple[int, int]]:
        """(rank, number), best first; candidates with a long queue only if one of them has `slots` free."""
        if self.free_slots and self.free_slots[-1][0] >= slots:
            return merge(self.short_queue, self.long_queue)
        return iter(self.short_queue)


class InstanceRanking:
    """Owns the sorted candidates. The caller puts an entry, puts it again whenever it changed, and removes it."""

    def __init__(self, order: CandidateOrder) -> None:
        self._order = order
        self._entries: dict[int, RankedInstance] = {}
        self._numbers: dict[Address, int] = {}
        self._shapes: dict[_Shape, _ShapeGroup] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: RankedInstance) -> None:
        """Add or replace the candidate of `entry.number`."""
        before = self._entries.get(entry.number)
        if before == entry:
            return
        if before is not None:
            self.remove(entry.number)
        self._entries[entry.number] = entry
        self._numbers[entry.address] = entry.number
        group = self._shapes.setdefault(entry.shape, _ShapeGroup())
        place = (self._order.rank(entry.candidate), entry.number)
        if entry.has_short_queue:
            insort(group.short_queue, place)
        else:
            insort(group.long_queue, place)
            insort(group.free_slots, (entry.candidate.free_slots, entry.number))

    def remove(self, number: int) -> None:
        """The instance is no candidate now; no effect if it was none."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        del self._numbers[entry.address]
        group = self._shapes[entry.shape]
        place = (self._order.rank(entry.candidate), number)
        if entry.has_short_queue:
            _remove(group.short_queue, place)
        else:
            _remove(group.long_queue, place)
            _remove(group.free_slots, (entry.candidate.free_slots, number))
        if not group.short_queue and not group.long_queue:
            del self._shapes[entry.shape]

    def has_room(self, slots: int) -> bool:
        """Whether any candidate takes a request of `slots` tokens now."""
        return any(group.has_room(slots) for group in self._shapes.values())

    def best(self, slots: int, max_length: int, excluded: list[Address], hits: PrefixHits) -> list[RankedInstance]:
        """The best candidates of each shape for `slots` tokens now and `max_length` in the end, lowest number first.

        A policy of this order chooses among them as it would among all, and names the same alternatives.
        """
        holders: dict[_Shape, dict[int, int]] = {}
        for address, tokens in hits.holders.items():
            number = self._numbers.get(address)
            if number is not None:
                holders.setdefault(self._entries[number].shape, {})[number] = tokens
        found: list[int] = []
        for shape, group in self._shapes.items():
            if shape[1] >= max_length:
                found += self._best_of(group, slots, excluded, holders.get(shape, {}), hits)
        entries = [self._entries[number] for number in sorted(found)]
        return [
            replace(entry, candidate=replace(entry.candidate, cached_tokens=tokens)) if tokens else entry
            for entry, tokens in ((entry, hits.tokens_at(entry.address)) for entry in entries)
        ]

    def _best_of(
        self, group: _ShapeGroup, slots: int, excluded: list[Address], holders: dict[int, int], hits: PrefixHits
    ) -> list[int]:
        """The best of one shape: of the prefix's holders, and of the others in order until none can be better."""
        weight = self._order.cached_weight
        best: list[tuple[int, int]] = []
        for number, tokens in holders.items():
            entry = self._entries[number]
            if entry.fits(slots) and entry.address not in excluded:
                insort(best, (self._order.rank(entry.candidate) - weight * tokens, number))
        del best[KEPT_PER_SHAPE:]
        for rank, number in group.ranked(slots):
            if len(best) == KEPT_PER_SHAPE and (rank - weight * hits.most_elsewhere, number) > best[-1]:
                break
            entry = self._entries[number]
            if number in holders or not entry.fits(slots) or entry.address in excluded:
                continue
            insort(best, (rank - weight * hits.tokens_at(entry.address) if weight else rank, number))
            del best[KEPT_PER_SHAPE:]
        return [number for _, number in best]


def _remove(places: list[tuple[int, int]], place: tuple[int, int]) -> None:
    del places[bisect_left(places, place)]
