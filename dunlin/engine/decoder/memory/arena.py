"""The engine's memory for weights and KV: one memory file, in granules that are mapped into virtual ranges.

A range is reserved as large as it could ever become and filled from its start; a kernel sees one tensor that gets
longer. The file may be the parent's, so that what lies in it outlives this process. Knows nothing of layers, weights
or slots, and assigns nothing: the granule ledger says which granule belongs where.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dunlin.engine.decoder.memory.granule_memory import missing_granules
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES

PIECE_GRANULES = 16
"""Granules mapped and populated, or unmapped, at a time: 1 MiB, which takes well under a millisecond."""

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0
_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class ArenaRange:
    """A reserved stretch of addresses, its first granules mapped. Made by `Arena.reserve`."""

    def __init__(self, arena: "Arena", reserved_granules: int) -> None:
        self._arena = arena
        self._mapped: list[int] = []
        self.reserved_bytes = reserved_granules * GRANULE_BYTES
        self._base = _map(None, self.reserved_bytes, _PROT_NONE, _hole_flags(), -1, 0)

    def __len__(self) -> int:
        return len(self._mapped)

    @property
    def granules(self) -> list[int]:
        """The granules mapped, in order."""
        return list(self._mapped)

    def extend(self, granules: NDArray[np.int64], *, populate: bool = False) -> Iterator[int]:
        """Map until the range has `granules`, of which it has the first ones; yields granules mapped after each piece.

        With `populate` the pages are there afterwards, so that no first touch waits for them. A granule may be mapped
        in two ranges at once: both see the same bytes.

        :raises MemoryError: the system has no memory or no mappings left; what was mapped stays.
        :raises ValueError: the range maps other granules, or the reservation is too small.
        """
        missing = missing_granules(self._mapped, granules, self.reserved_bytes, GRANULE_BYTES)
        most = PIECE_GRANULES if populate else self.reserved_bytes // GRANULE_BYTES
        for first, count in _pieces(missing, most):
            self._map_piece(first, count, populate)
            yield count

    def truncate(self, count: int) -> Iterator[int]:
        """Unmap from the end until `count` granules are left; yields granules unmapped after each piece. Their content
        stays in the file.
        """
        while len(self._mapped) > count:
            keep = max(count, len(self._mapped) - PIECE_GRANULES)
            unmapped = len(self._mapped) - keep
            del self._mapped[keep:]
            _map(self._base + keep * GRANULE_BYTES, unmapped * GRANULE_BYTES, _PROT_NONE, _hole_flags(True), -1, 0)
            yield unmapped

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """A flat view of the whole reservation; only its mapped part may be touched. Valid until the arena closes."""
        memory: Any = (ctypes.c_char * self.reserved_bytes).from_address(self._base)
        return torch.frombuffer(memory, dtype=dtype)

    def close(self) -> None:
        _libc.munmap(self._base, self.reserved_bytes)
        self._mapped.clear()

    def _map_piece(self, first: int, count: int, populate: bool) -> None:
        at, size = self._base + len(self._mapped) * GRANULE_BYTES, count * GRANULE_BYTES
        arena = self._arena
        _map(at, size, arena.protection, mmap.MAP_SHARED | _MAP_FIXED, arena.fd, arena.offset_of(first))
        self._mapped.extend(range(first, first + count))
        if populate:
            _populate(at, size)


class Arena:
    """Owns the ranges over one memory file, whose granules begin at `start_bytes`, a whole number of granules.

    A `read_only` one maps without the right to write.
    """

    def __init__(self, fd: int, start_bytes: int = 0, *, read_only: bool = False) -> None:
        self.fd = fd
        self.protection = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        self._start_bytes = start_bytes
        self._ranges: list[ArenaRange] = []

    def reserve(self, granules: int) -> ArenaRange:
        """Reserve addresses for at most `granules`; nothing is mapped yet."""
        made = ArenaRange(self, max(granules, 1))
        self._ranges.append(made)
        return made

    def offset_of(self, granule: int) -> int:
        """Where a granule lies in the file, in bytes."""
        return self._start_bytes + granule * GRANULE_BYTES

    def close(self) -> None:
        """Unmap every range. Views of them must not be touched afterwards; the file stays open."""
        for each in self._ranges:
            each.close()
        self._ranges = []


class FileMemory:
    """See `GranuleSource`: granules in the memory file itself, so that what lies in them outlives the process."""

    granule_bytes = GRANULE_BYTES
    outlives_process = True

    def open(self, fd: int, header_bytes: int, granules: int, *, read_only: bool = False) -> Arena:
        return Arena(fd, header_bytes, read_only=read_only)

    def file_bytes(self, granules: int) -> int:
        return granules * GRANULE_BYTES


FILE_MEMORY = FileMemory()


class FileHeader:
    """The first bytes of a memory file, mapped; what is written outlives the process."""

    def __init__(self, fd: int, length: int, *, read_only: bool = False) -> None:
        self._bytes = mmap.mmap(fd, length, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data

    def close(self) -> None:
        self._bytes.close()


def ensure_size(fd: int, size_bytes: int) -> None:
    """Make the file at least so large; never smaller, for another process may have it mapped."""
    if os.fstat(fd).st_size < size_bytes:
        os.ftruncate(fd, size_bytes)


def _pieces(granules: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Consecutive granules as (first, count), at most `most` each: one mmap serves each."""
    breaks = np.flatnonzero(np.diff(granules) != 1) + 1
    for run in np.split(granules, breaks):
        for at in range(0, len(run), most):
            yield int(run[at]), len(run[at : at + most])


def _populate(at: int, size: int) -> None:
    """Put the pages in place, writable and unchanged. A kernel before 5.14 cannot: then the first touch does."""
    if _libc.madvise(at, size, _POPULATE_WRITE) and ctypes.get_errno() != errno.EINVAL:
        raise MemoryError(f"populating {size} bytes: {os.strerror(ctypes.get_errno())}")


def _hole_flags(fixed: bool = False) -> int:
    return mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | (_MAP_FIXED if fixed else 0)


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address, size, protection, flags, fd, offset)
    if result == _FAILED:
        error = ctypes.get_errno()
        raise MemoryError(f"mmap of {size} bytes: {os.strerror(error)}")
    return int(result)
