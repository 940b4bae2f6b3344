"""Table of token slots: which are free, and which owner has the others. Pure; the engine never allocates.

A residency is one owner's slots, by position. Conservation, always: free + withheld + owned + reserved + moving +
quarantined == capacity. Before the capacity shrinks, the slots of the tail are withheld: no owner gets them, and those
of owners that have some must be released.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence

from services.instance.kv.residency import Extent, Residency, SlotUse, Span, cut_extents

Owner = Hashable
"""The owner of slots: a sequence by its number in the engine, a prefix block or an `IncomingMigration` itself."""


def end_of(extent: Extent) -> int:
    """The slot after the extent's last."""
    return extent[0] + extent[1]


def merge_adjacent(extents: list[Extent]) -> list[Extent]:
    """The same slots in the same order, in as few extents as possible."""
    merged: list[Extent] = []
    for first, length in extents:
        if merged and end_of(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((first, length))
    return merged


class SlotTable:
    """Owns every slot of one KV cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self.withheld = 0
        self._limit = capacity
        self._free: list[Extent] = [(0, capacity)] if capacity else []  # by first slot, never adjacent
        self._withheld: list[Extent] = []  # likewise
        self._residencies: dict[Owner, Residency] = {}
        self._counts = dict.fromkeys(SlotUse, 0)
        self._generations = 0

    def __repr__(self) -> str:
        uses = " | ".join(f"{use.value}: {self._counts[use]}" for use in SlotUse)
        return f"[capacity: {self.capacity} | free: {self.free} | withheld: {self.withheld} | {uses}]"

    @property
    def is_conserved(self) -> bool:
        """Whether the counts add up to the capacity; `check_integrity` looks at the slots themselves."""
        held = 0
        for slots in self._counts.values():
            held += slots
        return self.free + self.withheld + held == self.capacity and self.free >= 0

    def count(self, use: SlotUse) -> int:
        """Slots in that use."""
        return self._counts[use]

    def has_free(self, extents: Iterable[Extent]) -> bool:
        """Whether one of these slots is free."""
        return any(
            first < end_of(free) and free[0] < first + length for first, length in extents for free in self._free
        )

    def held(self, owner: Owner) -> int:
        """Slots of one owner, 0 if it has none."""
        residency = self._residencies.get(owner)
        return residency.slots if residency is not None else 0

    def residency(self, owner: Owner) -> Residency:
        """Where the KV of `owner` lies.

        Raises:
            KeyError: it has none.
        """
        return self._residencies[owner]

    def allocate(self, owner: Owner, count: int, use: SlotUse = SlotUse.OWNED, at: int | None = None) -> bool:
        """Give `owner` `count` more slots, for the positions from `at` on (None: after its last), in as few extents as
        possible. False: not that many are free, none given. `use` holds where it has none yet.

        Raises:
            ValueError: `count` is not positive, or one of the positions has a slot.
        """
        if count < 1:
            raise ValueError(f"{count} slots")
        if count > self.free:
            return False
        residency = self._residencies.get(owner)
        if residency is None:
            self._generations += 1
            residency = self._residencies[owner] = Residency(self._generations, use)
        position = residency.stop if at is None else at
        stop = position + count
        if residency.has_any(position, stop):
            raise ValueError(f"positions {position} to {stop} are added to a residency of {residency.spans}")
        position += self._take_adjacent(residency, position, count)
        while position < stop:
            position += self._take_best(residency, position, stop - position)
        self.free -= count
        self._counts[residency.use] += count
        return True

    def set_use(self, owner: Owner, use: SlotUse) -> None:
        """Change the use of the owner's slots."""
        residency = self._residencies[owner]
        self._counts[residency.use] -= residency.slots
        self._counts[use] += residency.slots
        residency.use = use

    def transfer(self, owner: Owner, heir: Owner, use: SlotUse) -> None:
        """Transfer all slots of `owner` to `heir`, which held none.

        Raises:
            KeyError: `owner` holds nothing.
            ValueError: `heir` does hold something.
        """
        if heir in self._residencies:
            raise ValueError(f"owner {heir} holds {self.held(heir)} slots already")
        self._residencies[heir] = self._residencies.pop(owner)
        self.set_use(heir, use)

    def move_span(self, owner: Owner, start: int, stop: int, heir: Owner, at: int, use: SlotUse) -> None:
        """The slots of the owner's positions `[start, stop)` are the heir's from now on, for its positions from `at`
        on, in `use` where it has none yet. An owner without slots is forgotten.

        Raises:
            KeyError: `owner` has no slots.
            ValueError: it lacks some of these positions, or the heir has a slot for one of its own already.
        """
        residency, heirs = self._residencies[owner], self._residencies.get(heir)
        residency.slots_of(start, stop)
        if heirs is not None and heirs.has_any(at, at + stop - start):
            raise ValueError(f"positions {at} to {at + stop - start} are added to a residency of {heirs.spans}")
        if heirs is None:
            self._generations += 1
            heirs = self._residencies[heir] = Residency(self._generations, use)
        for extent in residency.remove(start, stop):
            heirs.add(at, extent)
            at += extent[1]
        self._counts[residency.use] -= stop - start
        self._counts[heirs.use] += stop - start
        if not residency.slots:
            del self._residencies[owner]

    def use(self, owner: Owner) -> SlotUse | None:
        """The use of the owner's slots; None: it is none."""
        residency = self._residencies.get(owner)
        return residency.use if residency is not None else None

    def split_off(self, owner: Owner, heirs: Sequence[Owner | None], each: int) -> None:
        """Split off the owner's first slots: each heir, which holds none yet, gets those of the next `each` positions;
        None frees them. The owner stays, without slots too: it goes on in its use, and may be given more.

        Raises:
            ValueError: the owner does not hold that many in a row.
        """
        residency = self._residencies[owner]
        start, stop = residency.start, residency.start + each * len(heirs)
        residency.slots_of(start, stop)
        pieces = cut_extents(residency.remove(start, stop), each)
        for at, heir, extents in zip(range(start, stop, each), heirs, pieces, strict=True):
            if heir is None:
                self._counts[residency.use] -= each
                for extent in extents:
                    self._return_extent(extent)
                continue
            self._generations += 1
            first, *more = extents
            self._residencies[heir] = part = Residency(self._generations, residency.use, [at], [first], first[1])
            for extent in more:
                part.add(part.stop, extent)

    def release(self, owner: Owner) -> int:
        """Free all slots of `owner`; returns their number."""
        residency = self._residencies.pop(owner, None)
        return 0 if residency is None else self._give_back(residency, residency.start, residency.stop)

    def release_span(self, owner: Owner, start: int, stop: int) -> int:
        """Free the owner's slots of positions `[start, stop)`, as far as it has any; returns their number.

        An owner without slots is forgotten.
        """
        residency = self._residencies.get(owner)
        if residency is None:
            return 0
        freed = self._give_back(residency, start, stop)
        if not residency.slots:
            del self._residencies[owner]
        return freed

    def withhold_beyond(self, limit: int) -> None:
        """Give out no slot from `limit` on, until the next call or `resize`. The capacity itself ends it."""
        free = sorted([*self._free, *self._withheld])
        self._free, self._withheld, self._limit = [], [], limit
        self.free = self.withheld = 0
        for extent in free:
            self._return_extent(extent)

    def owners_beyond(self, limit: int) -> dict[Owner, list[Span]]:
        """The owners of slots from `limit` on, with the positions whose KV lies there."""
        found = {owner: residency.spans_beyond(limit) for owner, residency in self._residencies.items()}
        return {owner: spans for owner, spans in found.items() if spans}

    def resize(self, capacity: int) -> None:
        """Change the number of slots, at the end; the engine's layout changed.

        Raises:
            ValueError: an owner has slots beyond the new capacity.
        """
        beyond = self.owners_beyond(capacity)
        if beyond:
            raise ValueError(f"{len(beyond)} owners have slots beyond {capacity} of {self.capacity}")
        added = (self.capacity, capacity - self.capacity)
        self.withhold_beyond(capacity)
        self._withheld, self.withheld, self.capacity = [], 0, capacity
        if added[1] > 0:
            self._return_extent(added)

    def check_integrity(self) -> None:
        """Every slot is in exactly one place.

        Raises:
            AssertionError: the table contradicts itself.
        """
        held = [extent for residency in self._residencies.values() for extent in residency.extents]
        spans = [*self._free, *self._withheld, *held]
        at = 0
        for first, length in sorted(spans):
            assert first == at, f"slot {min(first, at)} is held twice or lost: {self!r}"
            assert length > 0, f"an empty extent at {first}"
            at += length
        assert at == self.capacity, f"{at} of {self.capacity} slots accounted for"
        for counted, name, extents in (
            (self.free, "free", self._free),
            (self.withheld, "withheld", self._withheld),
            *((self._counts[use], use.value, self._extents_in(use)) for use in SlotUse),
        ):
            slots = 0
            for _, length in extents:
                slots += length
            assert slots == counted, f"{counted} counted {name}, {slots} are"
        assert all(end_of(extent) <= self._limit for extent in self._free), f"beyond {self._limit} are free slots"

    def _extents_in(self, use: SlotUse) -> list[Extent]:
        return [extent for one in self._residencies.values() if one.use is use for extent in one.extents]

    def _take_adjacent(self, residency: Residency, position: int, count: int) -> int:
        """Continue the run that ends at `position` if the slots after it are free; how many were taken."""
        if not residency.starts or residency.stop != position:
            return 0
        after = end_of(residency.extents[-1])
        index = bisect_left(self._free, (after, 0))
        if index == len(self._free) or self._free[index][0] != after:
            return 0
        return self._take_from(residency, index, position, count)

    def _take_best(self, residency: Residency, position: int, count: int) -> int:
        """The smallest free extent that is large enough, else the largest; how many it gave."""
        best, best_length = 0, 0
        for index, (_, length) in enumerate(self._free):
            if length == count:
                best = index
                break
            if count < length < best_length if best_length > count else length > best_length:
                best, best_length = index, length
        return self._take_from(residency, best, position, count)

    def _take_from(self, residency: Residency, index: int, position: int, count: int) -> int:
        first, length = self._free[index]
        taken = min(length, count)
        residency.add(position, (first, taken))
        if taken == length:
            del self._free[index]
        else:
            self._free[index] = (first + taken, length - taken)
        return taken

    def _give_back(self, residency: Residency, start: int, stop: int) -> int:
        """Free the residency's slots of these positions; how many it had."""
        freed = 0
        for extent in residency.remove(start, stop):
            freed += extent[1]
            self._return_extent(extent)
        self._counts[residency.use] -= freed
        return freed

    def _return_extent(self, extent: Extent) -> None:
        """Slots without an owner are free below the limit, and withheld from there on."""
        first, length = extent
        below = min(max(0, self._limit - first), length)
        if below:
            self.free += below
            _insert(self._free, (first, below))
        if below < length:
            self.withheld += length - below
            _insert(self._withheld, (first + below, length - below))


def _insert(extents: list[Extent], extent: Extent) -> None:
    """Put it in its order, as one with its neighbours if it is adjacent to them."""
    first, length = extent
    index = bisect_left(extents, extent)
    follows = index > 0 and end_of(extents[index - 1]) == first
    if index < len(extents) and extents[index][0] == first + length:
        length += extents.pop(index)[1]
    if follows:
        before, before_length = extents[index - 1]
        extents[index - 1] = (before, before_length + length)
    else:
        extents.insert(index, (first, length))
