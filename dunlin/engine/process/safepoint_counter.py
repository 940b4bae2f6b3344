"""A counter of safepoints passed, in memory that the engine writes and its parent reads: no message, no lock.

It moves while the engine computes, copies or loads, so that a long step is told from a stuck one. Loads no torch.
"""

import mmap
import os

_BYTES = 8


class SafepointCounter:
    """One 64-bit counter in a memfd. The engine `pass_safepoint`s; the parent reads `passed`."""

    def __init__(self, fd: int) -> None:
        if os.fstat(fd).st_size < _BYTES:
            os.ftruncate(fd, _BYTES)
        self._memory = mmap.mmap(fd, _BYTES)
        self._cell = memoryview(self._memory).cast("q")

    @property
    def passed(self) -> int:
        """Safepoints passed since the memfd was made: a restarted engine goes on counting."""
        return self._cell[0]

    def pass_safepoint(self) -> None:
        self._cell[0] += 1
