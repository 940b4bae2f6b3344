"""What glibc's allocator does with freed memory."""

import ctypes

# Of mallopt.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Large temporaries of one piece of work are memory of the next: given back, each costs its page faults again."""
    libc = ctypes.CDLL(None)
    for option, value in ((_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20), (_M_MMAP_THRESHOLD, 32 << 20)):
        libc.mallopt(option, value)
