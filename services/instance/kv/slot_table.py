"""Table of token slots: which are free, and which owner has the others. Pure; the engine never allocates.

A holding is one owner's slots: extents in the order of the positions that they hold. Conservation, always:
free + owned + reserved + moving + quarantined == capacity.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

Extent = tuple[int, int]
"""(first slot, length)."""

Owner = Hashable
"""The owner of slots: a sequence by its number in the engine, a prefix block or an `IncomingMigration` itself."""


class SlotUse(Enum):
    """The use of a holding's slots."""

    OWNED = "owned"
    RESERVED = "reserved"
    MOVING = "moving"
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class Holding:
    """Slots of one owner. `ends[i]` is the number of positions in the extents up to i; `generation` is never reused."""

    generation: int
    use: SlotUse
    extents: list[Extent] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.ends[-1] if self.ends else 0

    def slots_of(self, start: int, stop: int) -> list[Extent]:
        """The slots of positions `[start, stop)`, in order.

        Raises:
            ValueError: it does not hold that many.
        """
        if not 0 <= start <= stop <= self.slots:
            raise ValueError(f"positions {start} to {stop} of a holding of {self.slots} slots")
        index = bisect_right(self.ends, start)
        found: list[Extent] = []
        while start < stop:
            first, length = self.extents[index]
            offset = start - (self.ends[index] - length)
            taken = min(length - offset, stop - start)
            found.append((first + offset, taken))
            start += taken
            index += 1
        return found

    def extent_around(self, position: int) -> tuple[int, int, int]:
        """(first position, stop, first slot) of the extent that holds `position`, one of those that it holds."""
        index = bisect_right(self.ends, position)
        first, length = self.extents[index]
        return self.ends[index] - length, self.ends[index], first

    def take_first(self, count: int) -> list[Extent]:
        """Take the first `count` slots away.

        Raises:
            ValueError: it does not hold that many.
        """
        taken, left = self.slots_of(0, count), self.slots_of(count, self.slots)
        self.extents, self.ends = [], []
        for extent in left:
            self.append(extent)
        return taken

    def append(self, extent: Extent) -> None:
        """Add slots at the end; an extent that continues the last one makes it longer."""
        first, length = extent
        if self.extents and end_of(self.extents[-1]) == first:
            self.extents[-1] = (self.extents[-1][0], self.extents[-1][1] + length)
            self.ends[-1] += length
            return
        self.ends.append(self.slots + length)
        self.extents.append(extent)


def end_of(extent: Extent) -> int:
    """The slot after the extent's last."""
    return extent[0] + extent[1]


def merge_adjacent(extents: list[Extent]) -> list[Extent]:
    """The same slots in the same order, in as few extents as possible."""
    whole = Holding(0, SlotUse.OWNED)
    for extent in extents:
        whole.append(extent)
    return whole.extents


def _pieces(extents: list[Extent], each: int) -> list[list[Extent]]:
    """The extents cut into pieces of `each` slots."""
    pieces: list[list[Extent]] = []
    room = 0
    for first, length in extents:
        if room and length:  # the end of a piece that began in the extent before
            taken = min(room, length)
            pieces[-1].append((first, taken))
            first, length, room = first + taken, length - taken, room - taken
        whole = length - length % each
        pieces += [[(at, each)] for at in range(first, first + whole, each)]
        if length > whole:
            pieces.append([(first + whole, length - whole)])
            room = each - (length - whole)
    return pieces


class SlotTable:
    """Owns every slot of one KV cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: list[Extent] = [(0, capacity)] if capacity else []  # by first slot, never adjacent
        self._holdings: dict[Owner, Holding] = {}
        self._counts = dict.fromkeys(SlotUse, 0)
        self._generations = 0
        self.free = capacity

    def __repr__(self) -> str:
        uses = " | ".join(f"{use.value}: {self._counts[use]}" for use in SlotUse)
        return f"[capacity: {self.capacity} | free: {self.free} | {uses}]"

    @property
    def is_conserved(self) -> bool:
        """Whether the counts add up to the capacity; `check_integrity` looks at the slots themselves."""
        held = 0
        for slots in self._counts.values():
            held += slots
        return self.free + held == self.capacity and self.free >= 0

    def count(self, use: SlotUse) -> int:
        """Slots in that use."""
        return self._counts[use]

    def held(self, owner: Owner) -> int:
        """Slots of one owner, 0 if it has none."""
        holding = self._holdings.get(owner)
        return holding.slots if holding is not None else 0

    def holding(self, owner: Owner) -> Holding:
        """What `owner` holds.

        Raises:
            KeyError: nothing.
        """
        return self._holdings[owner]

    def allocate(self, owner: Owner, count: int, use: SlotUse = SlotUse.OWNED) -> bool:
        """Give `owner` `count` more slots, in as few extents as possible. False: not that many are free, none given.

        Raises:
            ValueError: `count` is not positive.
        """
        if count < 1:
            raise ValueError(f"{count} slots")
        if count > self.free:
            return False
        holding = self._holdings.get(owner)
        if holding is None:
            self._generations += 1
            holding = self._holdings[owner] = Holding(self._generations, use)
        left = self._take_adjacent(holding, count)
        while left:
            left -= self._take_best(holding, left)
        self.free -= count
        self._counts[holding.use] += count
        return True

    def set_use(self, owner: Owner, use: SlotUse) -> None:
        """Change the use of the owner's slots."""
        holding = self._holdings[owner]
        self._counts[holding.use] -= holding.slots
        self._counts[use] += holding.slots
        holding.use = use

    def transfer(self, owner: Owner, heir: Owner, use: SlotUse) -> None:
        """Transfer all slots of `owner` to `heir`, which held none.

        Raises:
            KeyError: `owner` holds nothing.
            ValueError: `heir` does hold something.
        """
        if heir in self._holdings:
            raise ValueError(f"owner {heir} holds {self.held(heir)} slots already")
        self._holdings[heir] = self._holdings.pop(owner)
        self.set_use(heir, use)

    def use(self, owner: Owner) -> SlotUse | None:
        """The use of the owner's slots; None if it has none."""
        holding = self._holdings.get(owner)
        return holding.use if holding is not None else None

    def split_off(self, owner: Owner, heirs: Sequence[Owner | None], each: int) -> None:
        """Split off the owner's first slots: each heir, which holds none yet, gets the next `each`; None frees them.

        Raises:
            ValueError: the owner does not hold that many.
        """
        holding = self._holdings[owner]
        pieces = _pieces(holding.take_first(each * len(heirs)), each)
        for heir, piece in zip(heirs, pieces, strict=True):
            if heir is None:
                self._counts[holding.use] -= each
                self.free += each
                for extent in piece:
                    self._return_extent(extent)
            else:
                self._generations += 1
                ends = [each] if len(piece) == 1 else list(accumulate(length for _, length in piece))
                self._holdings[heir] = Holding(self._generations, holding.use, piece, ends)

    def release(self, owner: Owner) -> int:
        """Free all slots of `owner`; returns their number."""
        holding = self._holdings.pop(owner, None)
        if holding is None:
            return 0
        self._counts[holding.use] -= holding.slots
        self.free += holding.slots
        for extent in holding.extents:
            self._return_extent(extent)
        return holding.slots

    def check_integrity(self) -> None:
        """Every slot is in exactly one place.

        Raises:
            AssertionError: the table contradicts itself.
        """
        spans = [*self._free, *(extent for holding in self._holdings.values() for extent in holding.extents)]
        at = 0
        for first, length in sorted(spans):
            assert first == at, f"slot {min(first, at)} is held twice or lost: {self!r}"
            assert length > 0, f"an empty extent at {first}"
            at += length
        assert at == self.capacity, f"{at} of {self.capacity} slots accounted for"
        free = 0
        for _, length in self._free:
            free += length
        assert free == self.free, f"{self.free} counted free, {free} are"
        for use in SlotUse:
            slots = 0
            for holding in self._holdings.values():
                slots += holding.slots if holding.use is use else 0
            assert slots == self._counts[use], f"{self._counts[use]} counted {use.value}, {slots} are"

    def _take_adjacent(self, holding: Holding, count: int) -> int:
        """Continue the last extent if the slots after it are free; how many are still to be found."""
        if not holding.extents:
            return count
        index = bisect_left(self._free, (end_of(holding.extents[-1]), 0))
        if index == len(self._free) or self._free[index][0] != end_of(holding.extents[-1]):
            return count
        return count - self._take_from(holding, index, count)

    def _take_best(self, holding: Holding, count: int) -> int:
        """The smallest free extent that is large enough, else the largest; how many it gave."""
        best, best_length = 0, 0
        for index, (_, length) in enumerate(self._free):
            fits, best_fits = length >= count, best_length >= count
            if (fits, -length if fits else length) > (best_fits, -best_length if best_fits else best_length):
                best, best_length = index, length
        return self._take_from(holding, best, count)

    def _take_from(self, holding: Holding, index: int, count: int) -> int:
        first, length = self._free[index]
        taken = min(length, count)
        if taken == length:
            del self._free[index]
        else:
            self._free[index] = (first + taken, length - taken)
        holding.append((first, taken))
        return taken

    def _return_extent(self, extent: Extent) -> None:
        insort(self._free, extent)
        index = bisect_left(self._free, extent)
        if index + 1 < len(self._free) and end_of(self._free[index]) == self._free[index + 1][0]:
            self._free[index] = (self._free[index][0], self._free[index][1] + self._free[index + 1][1])
            del self._free[index + 1]
        if index > 0 and end_of(self._free[index - 1]) == self._free[index][0]:
            self._free[index - 1] = (self._free[index - 1][0], self._free[index - 1][1] + self._free[index][1])
            del self._free[index]
