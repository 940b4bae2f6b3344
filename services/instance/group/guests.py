"""Guests: sequences of the group's leader of which some tokens lie here, and the slots that are theirs.

A guest whose leader is gone is kept until its slots are needed: the request's next attempt may go on with it.

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
MAX_KEPT = 32
"""Guests that are kept for the next attempt of their request."""

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

    @property
    def held_stop(self) -> int:
        """The position after the last token that its leader said lies here."""
        return max(self.opened.held_stop, default=0)


class GuestTable:
    """Owns the guests by their number at all engines of the group.

    `headroom()`: slots that running sequences of the instance will need soon, which no guest gets.
    """

    def __init__(self, lifecycle: SequenceLifecycle, headroom: Callable[[], int]) -> None:
        self._lifecycle = lifecycle
        self._headroom = headroom
        self._guests: dict[int, Guest] = {}
        self._kept: dict[str, Guest] = {}
        """By the request's key; those whose slots were needed meanwhile have none."""

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

    def bound_beside(self, guest: Guest, row: range) -> int:
        """The positions that have a slot here, and keep it whatever a row of the positions `row` writes."""
        count = 0
        for start, stop in self.spans(guest):
            count += max(0, min(stop, row.start) - start)
            count += max(0, min(stop, guest.held_stop) - max(start, row.stop))
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

    def unbind_row(self, guest: Guest, row: range) -> None:
        """Unbind the positions `row`, and all after it but those that the leader said lie here (`OpenGuest`)."""
        self.unbind(guest, row.start, row.stop)
        self.unbind(guest, max(row.stop, guest.held_stop))

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

    # --- guests whose leader is gone ---

    def keep(self, guest: Guest) -> None:
        """Keep what lies here of a guest that no step uses any more, as far as its leader had told the text, until the
        slots are needed. Tokens behind that text may never have been delivered.
        """
        table, key = self._cache.slot_table, guest.opened.key
        table.release(guest.spare)
        table.release_span(guest, len(guest.opened.tokens), _END)
        if not key or not table.held(guest):
            table.release(guest)
            return
        older = [each for each, one in self._kept.items() if each == key or not table.held(one)]
        for each in older or list(self._kept)[: max(0, len(self._kept) - MAX_KEPT + 1)]:
            self._forget(self._kept.pop(each))
        self._cache.keep_until_needed(guest)
        self._kept[key] = guest

    def take_kept(self, guest: Guest) -> None:
        """Bind what is kept of an earlier attempt of a new guest's request, where the text is the same; never the last
        token, which must be computed.
        """
        kept = self._kept.pop(guest.opened.key, None)
        if kept is None or not self._cache.take_back(kept):
            return
        table, stop = self._cache.slot_table, _same_text(kept.opened, guest.opened)
        for first, last in self.spans(kept):
            if first < min(last, stop):
                table.move_span(kept, first, min(last, stop), guest, first, SlotUse.OWNED)
        table.release(kept)

    def put_back(self, guest: Guest) -> None:
        """Forget a new guest that gets no slots, but keep on what it took of an earlier attempt: its leader may ask for
        fewer.
        """
        del self._guests[guest.number]
        self.keep(guest)

    def forget_kept(self) -> None:
        """The engine and its KV are gone."""
        for guest in self._kept.values():
            self._forget(guest)
        self._kept.clear()

    def _forget(self, guest: Guest) -> None:
        if self._cache.take_back(guest):
            self._cache.slot_table.release(guest)

    @property
    def _cache(self) -> KvCache:
        return self._lifecycle.kv_cache


def _same_text(before: OpenGuest, now: OpenGuest) -> int:
    """The number of tokens that both begin with, but the last known one; 0 with another adapter."""
    if before.adapter != now.adapter:
        return 0
    most = min(len(before.tokens), len(now.tokens) - 1)
    if before.tokens[:most] == now.tokens[:most]:
        return most
    return next(at for at in range(most) if before.tokens[at] != now.tokens[at])
