"""The host tier under a soak: rooms of one size in a memory file, those that are free all zero. Owns the file."""

import mmap
import os

from dunlin.messages.engine import MapHost
from dunlin.messages.types import HostRegion


class SoakTier:
    """Owns `count` rooms of `room_bytes`; a region lies in one."""

    def __init__(self, count: int, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self._fd = os.memfd_create("soak-tier")
        os.ftruncate(self._fd, count * room_bytes)
        self._memory = mmap.mmap(self._fd, count * room_bytes)
        self._free = list(range(count))
        self._used: set[int] = set()
        self._zero = bytes(room_bytes)
        self._generation = 0

    @property
    def used(self) -> int:
        """Rooms that are taken."""
        return len(self._used)

    def map_command(self) -> MapHost:
        """What tells an engine of it."""
        return MapHost(f"/proc/{os.getpid()}/fd/{self._fd}", len(self._memory), 1)

    def take(self, length_bytes: int) -> HostRegion | None:
        """A room for a region; None: none is free."""
        if not self._free:
            return None
        room = self._free.pop(0)
        self._used.add(room)
        self._generation += 1
        return HostRegion(self._generation, self._generation, room * self.room_bytes, length_bytes)

    def free(self, region: HostRegion) -> None:
        """Nothing reads or writes it any more; it is zero from now on."""
        room = region.offset_bytes // self.room_bytes
        self._used.remove(room)
        self._memory[region.offset_bytes : region.offset_bytes + self.room_bytes] = self._zero
        self._free.append(room)

    def written_while_free(self) -> list[int]:
        """Free rooms in which something lies."""
        size = self.room_bytes
        return [room for room in self._free if self._memory[room * size : (room + 1) * size] != self._zero]

    def close(self) -> None:
        """Give the memory up."""
        self._memory.close()
        os.close(self._fd)
