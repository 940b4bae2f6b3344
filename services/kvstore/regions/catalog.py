"""The catalog of regions in the host tier: the writer and the attempt of each, and whether it may be read.

A region is reserved (its writer copies), then committed (readable), and quarantined when the writer's stream ended in
between: a writer that is only asleep may still write there. Knows no stream, timer or reason, and reads no byte.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeVar

from dunlin.effects import Address
from dunlin.messages.pool import FindRegions, ReserveRegion
from dunlin.messages.types import HostRegion, KeptRegion
from services.kvstore.regions.allocator import RangeAllocator

K = TypeVar("K")
V = TypeVar("V")


class RegionState(IntEnum):
    """The state of a region's bytes."""

    RESERVED = 0
    COMMITTED = 1
    QUARANTINED = 2


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """One region: its room, its writer and what it holds.

    `absence` numbers the end of the stream that outlived it when it was committed; 0 while that stream is open.
    """

    host: HostRegion
    writer: Address
    request: ReserveRegion
    state: RegionState = RegionState.RESERVED
    absence: int = 0

    @property
    def kept_region(self) -> KeptRegion:
        """The region as its owner may restore it."""
        return KeptRegion(self.request.region, self.host, self.request.chain)

    def with_checksum(self, checksum: int) -> HostRegion:
        """Its room, with the checksum that its bytes should have."""
        return replace(self.host, checksum=checksum)


class CatalogError(Exception):
    """The catalog and the allocator contradict each other: a defect here."""


class RegionCatalog:
    """Owns the tier's room and the entries of the regions that lie there; each range has exactly one entry."""

    def __init__(self, room: RangeAllocator) -> None:
        self.allocator = room
        self._entries: dict[int, RegionEntry] = {}
        self._of: dict[Address, dict[int, None]] = {}
        self._named: dict[tuple[str, str], dict[Address, None]] = {}
        self._of_key: dict[str, dict[int, None]] = {}
        self._freed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self, writer: Address, asked: ReserveRegion) -> RegionEntry | None:
        """Room for a region that `writer` will copy; None when the tier has none."""
        taken = self.allocator.allocate(asked.length_bytes) if asked.length_bytes > 0 else None
        if taken is None:
            return None
        host = HostRegion(taken.handle, taken.generation, taken.offset_bytes, taken.length_bytes)
        entry = RegionEntry(host, writer, asked)
        self._index(entry)
        return entry

    def claim(self, asker: Address, wanted: FindRegions) -> list[RegionEntry]:
        """Give the claimer every committed region of the request that it may have, by start, the longest first.

        Each gets a new generation: the names that its writer, or an earlier sequence of the claiming process, has
        are invalid from now on.
        """
        found = [entry for entry in self.entries_of_key(wanted.key) if may_claim(entry, wanted)]
        claimed = []
        for entry in found:
            held = self.allocator.renew_generation(entry.host.handle, entry.host.generation)
            assert held is not None, f"region {entry.host.handle} has no room"
            self._unindex(entry)
            asked = replace(entry.request, dispatcher=wanted.dispatcher, request=wanted.request, attempt=wanted.attempt)
            host = replace(entry.host, generation=held.generation)
            claimed.append(RegionEntry(host, asker, asked, RegionState.COMMITTED))
            self._index(claimed[-1])
        return sorted(claimed, key=lambda entry: (entry.request.region.start, -entry.request.region.stop))

    def find(self, writer: Address, handle: int, generation: int) -> RegionEntry | None:
        """The writer's region of this name; None when it is another's, unknown or of an older generation."""
        entry = self._entries.get(handle)
        if entry is None or entry.writer != writer or entry.host.generation != generation:
            return None
        return entry

    def commit(self, writer: Address, handle: int, generation: int, checksum: int) -> bool:
        """The bytes are written; a repeated commit with another checksum is not taken.

        A quarantined region may still be committed: its writer is back and says that the copy is whole.
        """
        entry = self.find(writer, handle, generation)
        if entry is None or entry.state is RegionState.COMMITTED:
            return entry is not None and entry.host.checksum == checksum
        self._entries[handle] = replace(entry, host=replace(entry.host, checksum=checksum), state=RegionState.COMMITTED)
        return True

    def release(self, writer: Address, handle: int, generation: int) -> bool:
        """Free a region that the writer neither needs nor writes any more; False if it is not the writer's."""
        entry = self.find(writer, handle, generation)
        if entry is not None:
            self._remove(entry)
        return entry is not None

    def orphan_writer(self, writer: Address, absence: int) -> int:
        """The writer's stream ended: quarantine its uncommitted regions. Returns how many are quarantined.

        Its committed regions are marked with the number of this absence.
        """
        quarantined = 0
        for entry in self.entries_of(writer):
            if entry.state is not RegionState.COMMITTED:
                self._entries[entry.host.handle] = replace(entry, state=RegionState.QUARANTINED)
                quarantined += 1
            elif not entry.absence:
                self._entries[entry.host.handle] = replace(entry, absence=absence)
        return quarantined

    def free_orphans(self, writer: Address, absence: int) -> None:
        """Free the committed regions that this absence orphaned."""
        self._free(entry for entry in self.entries_of(writer) if entry.absence == absence)

    def free_quarantined(self, writer: Address, but: Collection[tuple[int, int]]) -> None:
        """Free what the writer was writing when its stream ended, but for these, by (handle, generation)."""
        silent = [entry for entry in self.entries_of(writer) if entry.state is RegionState.QUARANTINED]
        self._free(entry for entry in silent if (entry.host.handle, entry.host.generation) not in but)

    def free_unwritten(self, writer: Address) -> None:
        """Free what a writer whose process surely ended had not committed."""
        self._free(entry for entry in self.entries_of(writer) if entry.state is not RegionState.COMMITTED)

    def pop_freed_keys(self) -> list[str]:
        """The requests with regions freed since the last call, each once."""
        freed, self._freed = list(self._freed), {}
        return freed

    def entries_of(self, writer: Address) -> list[RegionEntry]:
        """The writer's regions, oldest first."""
        return [self._entries[handle] for handle in self._of.get(writer, ())]

    def entries_of_key(self, key: str) -> list[RegionEntry]:
        """The regions of one request, oldest first."""
        return [self._entries[handle] for handle in self._of_key.get(key, ())]

    def known_writers(self) -> list[Address]:
        """All writers that have regions here, in order of their first one."""
        return list(self._of)

    def incarnations(self, writer: Address) -> list[Address]:
        """The incarnations of the same process that have regions here, in order of their first one."""
        return list(self._named.get((writer.role, writer.name), ()))

    def check_integrity(self) -> None:
        """Raises CatalogError (or RoomError) unless every range has one entry and every entry one writer."""
        self.allocator.check_integrity()
        if len(self.allocator) != len(self._entries):
            raise CatalogError(f"{len(self.allocator)} ranges and {len(self._entries)} entries")
        for handle, entry in self._entries.items():
            host, held = entry.host, self.allocator.find(handle, entry.host.generation)
            if held is None or (held.offset_bytes, held.length_bytes) != (host.offset_bytes, host.length_bytes):
                raise CatalogError(f"region {handle} is entered as {host} and held as {held}")
            if handle not in self._of.get(entry.writer, {}):
                raise CatalogError(f"region {handle} is not among those of {entry.writer}")
            if handle not in self._of_key.get(entry.request.key, {}):
                raise CatalogError(f"region {handle} is not among those of request {entry.request.key}")
        for index in (self._of, self._of_key):
            counted = [len(handles) for handles in index.values()]
            if 0 in counted or sum(counted) != len(self._entries):
                raise CatalogError(f"{len(self._entries)} entries, {counted} in an index")
        named = [writer for writers in self._named.values() for writer in writers]
        if len(named) != len(self._of) or any(writer not in self._of for writer in named):
            raise CatalogError(f"{list(self._of)} have regions, and by name {named}")

    def _free(self, entries: Iterable[RegionEntry]) -> None:
        for entry in entries:
            self._remove(entry)

    def _remove(self, entry: RegionEntry) -> None:
        self._unindex(entry)
        self.allocator.free(entry.host.handle, entry.host.generation)
        self._freed[entry.request.key] = None

    def _index(self, entry: RegionEntry) -> None:
        self._entries[entry.host.handle] = entry
        self._of.setdefault(entry.writer, {})[entry.host.handle] = None
        self._named.setdefault((entry.writer.role, entry.writer.name), {})[entry.writer] = None
        self._of_key.setdefault(entry.request.key, {})[entry.host.handle] = None

    def _unindex(self, entry: RegionEntry) -> None:
        del self._entries[entry.host.handle]
        _drop_from(self._of, entry.writer, entry.host.handle)
        if entry.writer not in self._of:
            _drop_from(self._named, (entry.writer.role, entry.writer.name), entry.writer)
        _drop_from(self._of_key, entry.request.key, entry.host.handle)


def _drop_from(index: dict[K, dict[V, None]], name: K, one: V) -> None:
    del index[name][one]
    if not index[name]:
        del index[name]


def may_claim(entry: RegionEntry, wanted: FindRegions) -> bool:
    """Committed, of the same weights and type, and not of an attempt that is newer than the asker's."""
    asked = entry.request
    same = (asked.dispatcher, asked.request) == (wanted.dispatcher, wanted.request)
    fits = (asked.weights_digest, asked.kv_dtype) == (wanted.weights_digest, wanted.kv_dtype)
    return entry.state is RegionState.COMMITTED and fits and not (same and asked.attempt > wanted.attempt)
