"""Where the KV of one owner lies: runs of slots by position of its text, with gaps where it has none here.

A prefix is the common case: one run from position 0 on. Knows no table; `slot_table.py` owns the slots.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

Extent = tuple[int, int]
"""(first slot, length)."""

Span = tuple[int, int]
"""(first position, the position after the last)."""


class SlotUse(Enum):
    """The use of a residency's slots."""

    OWNED = "owned"
    RESERVED = "reserved"
    MOVING = "moving"
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class Residency:
    """Slots of one owner, by position. Run i holds the positions from `starts[i]` on in the slots of `extents[i]`.

    Runs are in order of position and do not overlap; a run that continues the one before it, in position and slot, is
    part of it. `slots` counts all. `generation` is never reused by the table.
    """

    generation: int
    use: SlotUse
    starts: list[int] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    slots: int = 0

    @property
    def start(self) -> int:
        """The first position; 0 without any."""
        return self.starts[0] if self.starts else 0

    @property
    def stop(self) -> int:
        """The position after the last; 0 without any."""
        return self.starts[-1] + self.extents[-1][1] if self.starts else 0

    @property
    def spans(self) -> list[Span]:
        """The positions that have slots, in order: as few spans as possible."""
        found: list[Span] = []
        for start, (_, length) in zip(self.starts, self.extents, strict=True):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], start + length)
            else:
                found.append((start, start + length))
        return found

    def slots_of(self, start: int, stop: int) -> list[Extent]:
        """The slots of positions `[start, stop)`, in order.

        Raises:
            ValueError: one of them has no slot.
        """
        found = self._find(start, stop)
        covered = 0
        for _, (_, length) in found:
            covered += length
        if start < 0 or covered != stop - start:
            raise ValueError(f"positions {start} to {stop} of a residency of {self.spans}")
        return [extent for _, extent in found]

    def has_any(self, start: int, stop: int) -> bool:
        """Whether one of the positions `[start, stop)` has a slot."""
        return bool(self._find(start, stop))

    def run_around(self, position: int) -> tuple[int, int, int]:
        """(first position, stop, first slot) of the run that holds `position`, which has a slot."""
        index = bisect_right(self.starts, position) - 1
        first, length = self.extents[index]
        return self.starts[index], self.starts[index] + length, first

    def add(self, position: int, extent: Extent) -> None:
        """Add slots for the positions from `position` on.

        Raises:
            ValueError: one of them has a slot already.
        """
        index = bisect_right(self.starts, position)
        end = position + extent[1]
        if (index and self._end(index - 1) > position) or (index < len(self.starts) and self.starts[index] < end):
            raise ValueError(f"positions {position} to {end} are added to a residency of {self.spans}")
        self.starts.insert(index, position)
        self.extents.insert(index, extent)
        self.slots += extent[1]
        self._merge_with_next(index)
        if index:
            self._merge_with_next(index - 1)

    def remove(self, start: int, stop: int) -> list[Extent]:
        """Take the slots of positions `[start, stop)` away, as far as they have any; in order of position."""
        if start <= self.start and self.stop <= stop:  # all of them, as nearly always
            whole, self.starts, self.extents, self.slots = self.extents, [], [], 0
            return whole
        taken = self._find(start, stop)
        left = [*self._find(self.start, start), *self._find(stop, self.stop)]
        self.starts = [position for position, _ in left]
        self.extents = [extent for _, extent in left]
        for _, (_, length) in taken:
            self.slots -= length
        return [extent for _, extent in taken]

    def spans_beyond(self, slot: int) -> list[Span]:
        """The positions whose slots are `slot` or higher ones, in order."""
        found: list[Span] = []
        for start, (first, length) in zip(self.starts, self.extents, strict=True):
            if first + length > slot:
                found.append((start + max(0, slot - first), start + length))
        return found

    def _find(self, start: int, stop: int) -> list[tuple[int, Extent]]:
        """(first position, slots) of the parts of runs within `[start, stop)`."""
        found: list[tuple[int, Extent]] = []
        index = max(0, bisect_right(self.starts, start) - 1)
        while index < len(self.starts) and self.starts[index] < stop:
            run, (first, _) = self.starts[index], self.extents[index]
            begin, end = max(start, run), min(stop, self._end(index))
            if begin < end:
                found.append((begin, (first + begin - run, end - begin)))
            index += 1
        return found

    def _end(self, index: int) -> int:
        return self.starts[index] + self.extents[index][1]

    def _merge_with_next(self, index: int) -> None:
        if index + 1 >= len(self.starts):
            return
        (first, length), (next_first, next_length) = self.extents[index], self.extents[index + 1]
        if self._end(index) == self.starts[index + 1] and first + length == next_first:
            self.extents[index] = (first, length + next_length)
            del self.starts[index + 1], self.extents[index + 1]


def cut_extents(extents: Iterable[Extent], each: int) -> Iterator[list[Extent]]:
    """The extents in pieces of `each` slots, in their order; what is left at the end is a smaller piece."""
    piece: list[Extent] = []
    missing = each
    for first, length in extents:
        while length >= missing:
            piece.append((first, missing))
            yield piece
            first, length, piece, missing = first + missing, length - missing, [], each
        if length:
            piece.append((first, length))
            missing -= length
    if piece:
        yield piece
