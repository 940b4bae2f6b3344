"""Where an arena's granules lie: a memory file (`arena.py`), or a device's memory (`engine/device`).

The arena above knows ranges and granules; only what implements this knows how they are mapped.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class GranuleRange(Protocol):
    """A reserved stretch of addresses, its first granules mapped; see `ArenaRange`."""

    def __len__(self) -> int: ...

    @property
    def granules(self) -> list[int]:
        """The granules mapped, in order."""
        ...

    def extend(self, granules: NDArray[np.int64], *, populate: bool = False) -> Iterator[int]:
        """Map until the range has `granules`, of which it has the first ones; yields granules mapped after each piece.

        :raises MemoryError: there is no memory left; what was mapped stays.
        """
        ...

    def truncate(self, count: int) -> Iterator[int]:
        """Unmap from the end until `count` granules are left; yields granules unmapped after each piece."""
        ...

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """A flat view of the whole reservation; only its mapped part may be touched."""
        ...


class GranuleArena(Protocol):
    """The ranges over one set of granules; see `Arena`. `fd`: the file that the ledger lies in."""

    fd: int

    def reserve(self, granules: int) -> GranuleRange:
        """Reserve addresses for at most `granules`; nothing is mapped yet."""
        ...

    def offset_of(self, granule: int) -> int:
        """Where a granule lies in the file, in bytes; without meaning where it lies in none."""
        ...

    def close(self) -> None:
        """Unmap every range."""
        ...


class GranuleSource(Protocol):
    """Makes arenas. `outlives_process`: what lies in one is there for the next process with the same memory file."""

    @property
    def granule_bytes(self) -> int: ...

    @property
    def outlives_process(self) -> bool: ...

    def open(self, fd: int, header_bytes: int, granules: int, *, read_only: bool = False) -> GranuleArena:
        """An arena of `granules`; those that lie in the file begin after its `header_bytes`."""
        ...

    def file_bytes(self, granules: int) -> int:
        """What they take of the memory file."""
        ...


def missing_granules(
    mapped: list[int], granules: NDArray[np.int64], reserved_bytes: int, granule_bytes: int
) -> NDArray[np.int64]:
    """Those of `granules` that a range has to map yet, which has `mapped` the first ones.

    :raises ValueError: it mapped other granules, or the reservation is too small.
    """
    if mapped != granules[: len(mapped)].tolist():
        raise ValueError("a range can only be extended at its end")
    if len(granules) * granule_bytes > reserved_bytes:
        raise ValueError(f"a range of {reserved_bytes} bytes cannot hold {len(granules)} granules")
    return granules[len(mapped) :]
