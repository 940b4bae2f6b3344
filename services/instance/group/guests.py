"""Guests: sequences of the group's leader of which some tokens lie here, and the slots that are theirs.

Slots are set aside in bulk and bound to positions when a step writes those; what a row did not compute is unbound.
Set-aside slots count as reserved, bound ones as owned. Knows no step and no engine.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dunlin.messages.group import OpenGuest
from services.instance.kv.kv_cache import KvCache
from services.instance.kv.residency import Extent, SlotUse, Span
from services.instance.scheduling.lifecycle import SequenceLifecycle

MAX_GUESTS = 256
_END = 1 << 62
"""After all positions."""


class SpareSlots:
    """The owner of the slots that are set aside for a guest and bound to no position of it."""


@dataclass(slots=True, eq=False)
class Guest:
    """A guest, and the owner of its bound slots. `spare` owns the others, for the positions `[bound, all)`.

    `opened`: what the leader said of it last.
    """

    number: int
    opened: OpenGuest
    spare: SpareSlots = field(default_factory=SpareSlots)


class GuestTable:
    """Owns the guests by their number at all engines of the group.

    `headroom()`: slots that running sequences of the instance will need soon, which no guest gets.
    """

    def __init__(self, lifecycle: SequenceLifecycle, headroom: Callable[[], int]) -> None:
        self._lifecycle = lifecycle
        self._headroom = headroom
        self._guests: dict[int, Guest] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._guests.values()))

    @property
    def capacity(self) -> int:
        """All slots of the KV cache, but for those that are about to go."""
        return self._cache.slot_table.capacity - self._cache.slot_table.withheld

    @property
    def available_slots(self) -> int:
        """Slots that may be set aside for guests now."""
        return max(0, self._cache.available_slots - self._headroom())

    def get(self, number: int) -> Guest | None:
        """The guest of that number; None: it is not open."""
        return self._guests.get(number)

    def add(self, opened: OpenGuest) -> Guest:
        """Add a guest without slots. Raises ValueError if it is there already."""
        if opened.sequence in self._guests:
            raise ValueError(f"guest {opened.sequence} is open")
        guest = self._guests[opened.sequence] = Guest(opened.sequence, opened)
        return guest

    def slots(self, guest: Guest) -> int:
        """All slots set aside for the guest, bound ones included."""
        return self.bound(guest) + self._cache.slot_table.held(guest.spare)

    @property
    def slots_in_all(self) -> int:
        """The slots of all guests."""
        total = 0
        for guest in self._guests.values():
            total += self.slots(guest)
        return total

    def bound(self, guest: Guest) -> int:
        """The slots that are bound to positions."""
        return self._cache.slot_table.held(guest)

    def bound_before(self, guest: Guest, position: int) -> int:
        """The positions before this one that have a slot here."""
        count = 0
        for start, stop in self.spans(guest):
            count += max(0, min(stop, position) - start)
        return count

    def spans(self, guest: Guest) -> list[Span]:
        """The positions that have a slot here, in order."""
        return self._cache.slot_table.residency(guest).spans if self.bound(guest) else []

    def has(self, guest: Guest, start: int, stop: int) -> bool:
        """Whether all positions `[start, stop)` have slots here."""
        if start >= stop:
            return True
        try:
            self.extents(guest, start, stop)
        except (KeyError, ValueError):
            return False
        return True

    def extents(self, guest: Guest, start: int, stop: int) -> list[Extent]:
        """The slots of positions `[start, stop)`, in order. Raises ValueError or KeyError if one has none."""
        return self._cache.slot_table.residency(guest).slots_of(start, stop)

    def resize(self, guest: Guest, slots: int) -> bool:
        """Have `slots` slots set aside in all; bound ones stay. False: there is no room, nothing changed."""
        held, bound, cache = self.slots(guest), self.bound(guest), self._cache
        if slots <= held:
            cache.slot_table.release_span(guest.spare, max(slots, bound), held)
            return True
        more = slots - held
        if more > self.available_slots:
            return False
        return cache.evict_prefixes(more) and cache.slot_table.allocate(guest.spare, more, SlotUse.RESERVED, at=held)

    def bind(self, guest: Guest, start: int, stop: int) -> None:
        """Bind spare slots to the positions `[start, stop)`. Raises KeyError or ValueError if there are too few."""
        bound = self.bound(guest)
        self._cache.slot_table.move_span(guest.spare, bound, bound + stop - start, guest, start, SlotUse.OWNED)

    def unbind(self, guest: Guest, position: int, end: int = _END) -> None:
        """Unbind all positions from `position` on, and before `end`: their slots are spare again."""
        if not self.bound(guest) or self._cache.slot_table.residency(guest).stop <= position:
            return
        for first, last in reversed(self.spans(guest)):
            start, stop = max(first, position), min(last, end)
            if start < stop:
                at = self.bound(guest) - (stop - start)
                self._cache.slot_table.move_span(guest, start, stop, guest.spare, at, SlotUse.RESERVED)

    def unbind_all_but(self, guest: Guest, held: Iterable[Span]) -> None:
        """Unbind all positions outside of the spans, which are in order: their slots are spare again."""
        at = 0
        for start, stop in [*held, (_END, _END)]:
            self.unbind(guest, at, start)
            at = stop

    def spare_extents(self, guest: Guest, count: int) -> list[Extent]:
        """The last `count` spare slots, which stay spare. Raises ValueError or KeyError if there are fewer."""
        residency = self._cache.slot_table.residency(guest.spare)
        return residency.slots_of(residency.stop - count, residency.stop)

    def close(self, guest: Guest) -> None:
        """Forget the guest; its slots are free."""
        self._guests.pop(guest.number, None)
        self.release(guest)

    def take_all(self) -> list[Guest]:
        """Forget all guests; their slots are theirs until `release`."""
        taken, self._guests = list(self._guests.values()), {}
        return taken

    def release(self, guest: Guest) -> None:
        """Free the slots of a guest that no step uses any more."""
        self._cache.slot_table.release(guest)
        self._cache.slot_table.release(guest.spare)

    @property
    def _cache(self) -> KvCache:
        return self._lifecycle.kv_cache
