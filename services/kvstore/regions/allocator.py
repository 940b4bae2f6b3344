"""The host tier's bytes as ranges: which are free, and which handle has which.

A pure allocator. It knows no region, no writer and no reason; it never looks at a byte. A handle is a small number used
again after its room was freed, and its generation counts the uses, so that an old name never reaches new content.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Ints = array[int]
else:  # Python 3.11 cannot subscript array at run time
    Ints = array


@dataclass(frozen=True, slots=True)
class HostRange:
    """One piece of room, in bytes: `length_bytes` as asked for, `room_bytes` with the padding to the alignment."""

    handle: int
    generation: int
    offset_bytes: int
    length_bytes: int
    padded_bytes: int


class AllocatorError(Exception):
    """The allocator's books contradict each other: a defect of the allocator, not of a caller."""


class RangeAllocator:
    """Ranges of `capacity_bytes` bytes, each aligned; free neighbours are always one range."""

    def __init__(self, capacity_bytes: int, alignment_bytes: int, max_ranges: int) -> None:
        self.capacity_bytes = capacity_bytes - capacity_bytes % alignment_bytes
        self.alignment_bytes = alignment_bytes
        self.free_bytes = self.capacity_bytes
        self._max_ranges = max_ranges
        # Free ranges in order of offset, as two columns.
        self._offsets: Ints = array("q", [0] if self.capacity_bytes else [])
        self._lengths: Ints = array("q", [self.capacity_bytes] if self.capacity_bytes else [])
        self._held: dict[int, HostRange] = {}
        self._generations: Ints = array("q")
        self._idle_handles: list[int] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def largest_free_bytes(self) -> int:
        """The longest request that can be met now, were there a handle for it."""
        return max(self._lengths, default=0)

    def find(self, handle: int, generation: int) -> HostRange | None:
        """The range that this name means now; None when the name is unknown or old."""
        held = self._held.get(handle)
        return held if held is not None and held.generation == generation else None

    def allocate(self, length_bytes: int) -> HostRange | None:
        """Room for `length_bytes` > 0 from the shortest free range that fits; None when there is none, or no handle."""
        if length_bytes <= 0:
            raise ValueError(f"room for {length_bytes} bytes: ask for at least 1")
        room_bytes = -(-length_bytes // self.alignment_bytes) * self.alignment_bytes
        index = self._best_fit(room_bytes)
        if index is None or len(self._held) >= self._max_ranges:
            return None
        offset = self._split_free(index, room_bytes)
        handle = self._next_handle()
        taken = HostRange(handle, self._generations[handle - 1], offset, length_bytes, room_bytes)
        self._held[handle] = taken
        return taken

    def renew_generation(self, handle: int, generation: int) -> HostRange | None:
        """The same range under its next generation: the old name does not reach it any more; None as `find`."""
        held = self.find(handle, generation)
        if held is None:
            return None
        self._generations[handle - 1] += 1
        renamed = self._held[handle] = replace(held, generation=self._generations[handle - 1])
        return renamed

    def free(self, handle: int, generation: int) -> bool:
        """Give a range back; False when the name is unknown or old."""
        held = self.find(handle, generation)
        if held is None:
            return False
        del self._held[handle]
        self._idle_handles.append(handle)
        self.free_bytes += held.padded_bytes
        self._insert(held.offset_bytes, held.padded_bytes)
        return True

    def check_integrity(self) -> None:
        """Raises AllocatorError unless free and held ranges tile the capacity, aligned, no two free ones side by
        side."""
        pieces = [(offset, length, True) for offset, length in zip(self._offsets, self._lengths, strict=True)]
        pieces += [(held.offset_bytes, held.padded_bytes, False) for held in self._held.values()]
        end, was_free, free_bytes = 0, False, 0
        for offset, length, is_free in sorted(pieces):
            if offset != end or length <= 0 or length % self.alignment_bytes:
                raise AllocatorError(f"a range of {length} bytes at {offset}, where one should start at {end}")
            if is_free and was_free:
                raise AllocatorError(f"two free neighbours meet at {offset}")
            end, was_free = offset + length, is_free
            free_bytes += length if is_free else 0
        if end != self.capacity_bytes or free_bytes != self.free_bytes:
            raise AllocatorError(f"{end} of {self.capacity_bytes} tiled; {free_bytes} free, {self.free_bytes} counted")
        if len(self._held) + len(self._idle_handles) != len(self._generations):
            raise AllocatorError(
                f"{len(self._generations)} handles, {len(self._held)} held, {len(self._idle_handles)} idle"
            )

    def _best_fit(self, room_bytes: int) -> int | None:
        """The index of the shortest free range that is long enough, the first of equals; None: none is."""
        best = None
        for index, length in enumerate(self._lengths):
            if length >= room_bytes and (best is None or length < self._lengths[best]):
                best = index
        return best

    def _split_free(self, index: int, room_bytes: int) -> int:
        offset = self._offsets[index]
        if self._lengths[index] == room_bytes:
            del self._offsets[index], self._lengths[index]
        else:
            self._offsets[index] += room_bytes
            self._lengths[index] -= room_bytes
        self.free_bytes -= room_bytes
        return offset

    def _next_handle(self) -> int:
        if self._idle_handles:
            handle = self._idle_handles.pop()
        else:
            self._generations.append(0)
            handle = len(self._generations)
        self._generations[handle - 1] += 1
        return handle

    def _insert(self, offset: int, length: int) -> None:
        index = bisect_left(self._offsets, offset)
        joins_next = index < len(self._offsets) and offset + length == self._offsets[index]
        if joins_next:
            length += self._lengths[index]
            del self._offsets[index], self._lengths[index]
        if index and self._offsets[index - 1] + self._lengths[index - 1] == offset:
            self._lengths[index - 1] += length
        else:
            self._offsets.insert(index, offset)
            self._lengths.insert(index, length)
