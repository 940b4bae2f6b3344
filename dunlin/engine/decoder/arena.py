"""The engine's memory for weights and KV: one memfd, in granules that are mapped into virtual ranges.

A range is reserved as large as it could ever become and filled from its start; a kernel sees one tensor that gets
longer. The memfd may be the parent's, so that what lies in it outlives this process. Knows nothing of layers, weights
or slots.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch

GRANULE_BYTES = 64 * 1024

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def granules_for(size_bytes: int) -> int:
    """How many granules hold `size_bytes`."""
    return -(-size_bytes // GRANULE_BYTES)


class ArenaRange:
    """A reserved stretch of addresses, its first granules mapped. Made by `Arena.reserve`."""

    def __init__(self, arena: "Arena", reserved_granules: int) -> None:
        self._arena = arena
        self.reserved_bytes = reserved_granules * GRANULE_BYTES
        self._base = _map(
            None, self.reserved_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0
        )
        self.granules: list[int] = []

    @property
    def mapped_bytes(self) -> int:
        return len(self.granules) * GRANULE_BYTES

    def file_runs(self) -> list[tuple[int, int]]:
        """Where the range lies in the memfd, in order: (offset, length) in bytes."""
        return [(first * GRANULE_BYTES, length * GRANULE_BYTES) for first, length in _runs(self.granules)]

    def grow(self, count: int) -> None:
        """Map `count` free granules at the end.

        :raises MemoryError: the arena has too few free granules, or the reservation is full.
        """
        if self.mapped_bytes + count * GRANULE_BYTES > self.reserved_bytes:
            raise MemoryError(f"a range of {self.reserved_bytes} bytes cannot grow by {count} granules")
        granules = self._arena.allocate(count)
        for first, length in _runs(granules):
            self._map_run(first, length)

    def shrink(self, count: int) -> None:
        """Unmap the last `count` granules and give them back; their content stays in the memfd until they are written
        again.
        """
        if not 0 <= count <= len(self.granules):
            raise ValueError(f"cannot give back {count} of {len(self.granules)} granules")
        keep = len(self.granules) - count
        leaving, self.granules = self.granules[keep:], self.granules[:keep]
        hole = self._base + keep * GRANULE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        if count:
            _map(hole, count * GRANULE_BYTES, _PROT_NONE, flags, -1, 0)
        self._arena.release(leaving)

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """A flat view of the whole reservation; only its mapped part may be touched. Valid until the arena closes."""
        memory: Any = (ctypes.c_char * self.reserved_bytes).from_address(self._base)
        return torch.frombuffer(memory, dtype=dtype)

    def close(self) -> None:
        _libc.munmap(self._base, self.reserved_bytes)
        self._arena.release(self.granules)
        self.granules = []

    def _map_run(self, first: int, length: int) -> None:
        at = self._base + self.mapped_bytes
        flags = mmap.MAP_SHARED | _MAP_FIXED
        _map(at, length * GRANULE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, flags, self._arena.fd, first * GRANULE_BYTES)
        self.granules.extend(range(first, first + length))


class Arena:
    """Owns the memfd's granules: each is free or mapped into exactly one range.

    Granules are taken lowest first, so a second arena made by the same calls on the same memfd finds the same bytes in
    the same ranges.
    """

    def __init__(self, fd: int, granules: int) -> None:
        self.fd = fd
        self.total = granules
        self._free = list(range(granules))
        self._ranges: list[ArenaRange] = []
        if os.fstat(fd).st_size < granules * GRANULE_BYTES:
            os.ftruncate(fd, granules * GRANULE_BYTES)

    @property
    def free_granules(self) -> int:
        return len(self._free)

    def reserve(self, granules: int) -> ArenaRange:
        """Reserve addresses for at most `granules`; nothing is mapped yet."""
        made = ArenaRange(self, max(granules, 1))
        self._ranges.append(made)
        return made

    def allocate(self, count: int) -> list[int]:
        """The `count` lowest free granules.

        :raises MemoryError: fewer are free.
        """
        if count > len(self._free):
            raise MemoryError(f"{count} granules wanted, {len(self._free)} of {self.total} free")
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def release(self, granules: Sequence[int]) -> None:
        self._free = sorted([*self._free, *granules])

    def check_integrity(self) -> None:
        """free + mapped = all, no granule twice.

        :raises AssertionError: the law is broken.
        """
        held = [granule for each in self._ranges for granule in each.granules]
        if sorted([*held, *self._free]) != list(range(self.total)):
            raise AssertionError(
                f"{len(held)} granules mapped and {len(self._free)} free are not the {self.total} of the arena"
            )

    def close(self) -> None:
        """Unmap every range. Views of them must not be touched afterwards; the memfd stays open."""
        for each in self._ranges:
            each.close()
        self._ranges = []


def _runs(granules: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive granules as (first, length): one mmap serves each."""
    runs: list[tuple[int, int]] = []
    for granule in granules:
        if runs and sum(runs[-1]) == granule:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((granule, 1))
    return runs


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address, size, protection, flags, fd, offset)
    if result == _FAILED:
        error = ctypes.get_errno()
        raise MemoryError(f"mmap of {size} bytes: {os.strerror(error)}")
    return int(result)
