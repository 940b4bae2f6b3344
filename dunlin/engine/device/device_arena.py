"""An arena whose granules are a device's memory: the same ranges as a memory file's (`decoder/memory/arena.py`).

What lies in it ends with the process: the memory file holds the ledger alone, and each engine begins a new arena.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dunlin.engine.decoder.memory.granule_memory import missing_granules
from dunlin.engine.device.memory_driver import MemoryDriver

PIECE_GRANULES = 16
"""Granules mapped or unmapped at a time: on a GPU 32 MiB, by calls of about 0.1 ms each."""


class DeviceRange:
    """A reserved stretch of addresses, its first granules mapped. Made by `DeviceArena.reserve`."""

    def __init__(self, arena: "DeviceArena", reserved_granules: int) -> None:
        self._arena = arena
        self._driver = arena.driver
        self._mapped: list[int] = []
        self.reserved_bytes = reserved_granules * self._driver.granule_bytes
        self._base = self._driver.reserve(self.reserved_bytes)

    def __len__(self) -> int:
        return len(self._mapped)

    @property
    def granules(self) -> list[int]:
        """The granules mapped, in order."""
        return list(self._mapped)

    def extend(self, granules: NDArray[np.int64], *, populate: bool = False) -> Iterator[int]:
        """As `ArenaRange.extend`: map until the range has `granules`; yields granules mapped after each piece. Device
        memory needs no populating.

        :raises MemoryError: the device has no memory left; what was mapped stays.
        :raises ValueError: the range maps other granules, or the reservation is too small.
        """
        missing = missing_granules(self._mapped, granules, self.reserved_bytes, self._driver.granule_bytes).tolist()
        for at in range(0, len(missing), PIECE_GRANULES):
            piece = missing[at : at + PIECE_GRANULES]
            for granule in piece:
                self._driver.map(self._address(len(self._mapped)), self._arena.handle(granule))
                self._mapped.append(granule)
            yield len(piece)

    def truncate(self, count: int) -> Iterator[int]:
        """Unmap from the end until `count` granules are left; yields granules unmapped after each piece. Their content
        stays, as other ranges may have them.
        """
        if len(self._mapped) > count:
            self._driver.wait()  # a kernel that was launched before may still read there
        while len(self._mapped) > count:
            before = len(self._mapped)
            while len(self._mapped) > max(count, before - PIECE_GRANULES):
                self._mapped.pop()
                self._driver.unmap(self._address(len(self._mapped)))
            yield before - len(self._mapped)

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """A flat view of the whole reservation; only its mapped part may be touched. Valid until the arena closes."""
        return self._driver.view(self._base, self.reserved_bytes).view(dtype)

    def close(self) -> None:
        """Unmap everything and give the addresses back."""
        for _ in self.truncate(0):
            pass
        self._driver.free(self._base, self.reserved_bytes)

    def _address(self, place: int) -> int:
        return self._base + place * self._driver.granule_bytes


class DeviceArena:
    """Owns granules, made when they are first mapped, and the ranges over them. `fd` is the ledger's file."""

    def __init__(self, driver: MemoryDriver, fd: int) -> None:
        self.driver = driver
        self.fd = fd
        self._handles: dict[int, int] = {}
        self._ranges: list[DeviceRange] = []

    def reserve(self, granules: int) -> DeviceRange:
        """Reserve addresses for at most `granules`; nothing is mapped yet."""
        made = DeviceRange(self, max(granules, 1))
        self._ranges.append(made)
        return made

    def handle(self, granule: int) -> int:
        """The driver's name of a granule. :raises MemoryError: it is new, and the device has no memory left."""
        found = self._handles.get(granule)
        if found is None:
            found = self._handles[granule] = self.driver.create()
        return found

    def offset_of(self, granule: int) -> int:
        """Granules of a device lie in no file: where one would lie after the others, in bytes."""
        return granule * self.driver.granule_bytes

    def close(self) -> None:
        """Unmap every range and give the memory back. Views must not be touched afterwards."""
        for each in self._ranges:
            each.close()
        for handle in self._handles.values():
            self.driver.release(handle)
        self._ranges, self._handles = [], {}


class DeviceMemory:
    """See `GranuleSource`: a device's memory by its driver."""

    outlives_process = False

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    @property
    def granule_bytes(self) -> int:
        return self._driver.granule_bytes

    def open(self, fd: int, header_bytes: int, granules: int, *, read_only: bool = False) -> DeviceArena:
        return DeviceArena(self._driver, fd)

    def file_bytes(self, granules: int) -> int:
        return 0
