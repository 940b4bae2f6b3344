"""64-bit numbers that processes share, on which they wait for each other. Loads no torch.

Each number has one writer and only grows. A wait is a short spin, then a sleep in the kernel that the writer ends.
What was written into shared memory before a number is seen by those that have seen the number: so x86 orders stores,
and it is asked for (`is_supported`).
"""

import ctypes
import mmap
import os
import platform
from collections.abc import Callable

from dunlin.engine.ranks.errors import RankGone

WORD_BYTES = 64
"""Each number has a cache line of its own."""
SPINS = 500
"""Looks at a number before a wait sleeps: about 30 us, longer than ranks with cores of their own are apart."""
LOOK_NS = 20_000_000
"""A sleep ends after so long to look whether the writer is alive."""
_FUTEX, _WAIT, _WAKE, _ALL = 202, 0, 1, 1 << 30
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def is_supported() -> bool:
    """Whether this machine orders stores as ranks need it, and its system call has the number used here."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


class SharedWords:
    """`count` numbers at the start of the memory file `fd`, which is made large enough. `is_alive` of other ranks."""

    def __init__(self, fd: int, count: int, is_alive: Callable[[], bool] = lambda: True) -> None:
        size = count * WORD_BYTES
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        self._memory = mmap.mmap(fd, size)
        self._cells = memoryview(self._memory).cast("q")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._pause = _Timespec(0, LOOK_NS)
        self._is_alive = is_alive

    def get(self, word: int) -> int:
        """The number as it is now."""
        return self._cells[word * WORD_BYTES // 8]

    def set(self, word: int, value: int) -> None:
        """Write the number, and wake those that wait for it."""
        self._cells[word * WORD_BYTES // 8] = value
        _libc.syscall(_FUTEX, ctypes.c_void_p(self._address + word * WORD_BYTES), _WAKE, _ALL, None, None, 0)

    def wait(self, word: int, least: int) -> int:
        """Wait until the number is `least` or more; returns it. :raises RankGone: its writer has ended."""
        cells, at = self._cells, word * WORD_BYTES // 8
        for _ in range(SPINS):
            if cells[at] >= least:
                return cells[at]
        while (value := cells[at]) < least:
            self._sleep(word, value)
            if cells[at] < least and not self._is_alive():
                raise RankGone(f"a rank of this engine has ended: {value} of {least} was reached")
        return value

    def _sleep(self, word: int, value: int) -> None:
        """Until the number is another one, or for `LOOK_NS`. The kernel compares its lower half."""
        address, pause = ctypes.c_void_p(self._address + word * WORD_BYTES), ctypes.byref(self._pause)
        _libc.syscall(_FUTEX, address, _WAIT, ctypes.c_int(ctypes.c_uint32(value).value).value, pause, None, 0)
