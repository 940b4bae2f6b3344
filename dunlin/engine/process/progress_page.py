"""Two numbers in memory that an engine and its parent share: no message, no lock, no system call.

The engine counts what it passes while it computes, copies or loads, so that a long step is told from a stuck one. The
parent writes the newest interrupt's ticket, the stop word: the engine looks at it at every safepoint and reads its
socket within a step only when it has changed. Loads no torch.
"""

import mmap
import os

_BYTES = 16
_PASSED, _TICKET = 0, 1


class ProgressPage:
    """A page of a memfd. The engine calls `count`, `is_called` and `hear`, the parent `passed` and `call`."""

    def __init__(self, fd: int) -> None:
        if os.fstat(fd).st_size < _BYTES:
            os.ftruncate(fd, _BYTES)
        self._memory = mmap.mmap(fd, _BYTES)
        self._cells = memoryview(self._memory).cast("q")
        self._heard = self._cells[_TICKET]  # an earlier engine's

    @property
    def passed(self) -> int:
        """Safepoints passed, and layers of steps without any, since the memfd was made: a restarted engine goes on
        counting.
        """
        return self._cells[_PASSED]

    def count(self) -> None:
        """The engine goes on."""
        self._cells[_PASSED] += 1

    def call(self, ticket: int) -> None:
        """An interrupt with this ticket is about to be sent."""
        self._cells[_TICKET] = ticket

    def is_called(self) -> bool:
        """Whether an interrupt is on its way that has not been heard."""
        return self._cells[_TICKET] != self._heard

    def hear(self, ticket: int) -> None:
        """An interrupt has arrived."""
        if ticket == self._cells[_TICKET]:
            self._heard = ticket
