"""Lowers the priority of a whole process, also where the kernel shares its cores among sessions. Linux only."""

import os
import time
from contextlib import suppress
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _BETWEEN_S = 5, 0.1
"""The kernel takes one such change every 0.1 s from all users without privileges together."""


def lower_priority(nice: int) -> None:
    """Add `nice` to this process's niceness and to that of its session, which should be its own.

    With `kernel.sched_autogroup_enabled` cores are shared among sessions first, and niceness counts within one of them:
    a nice process is charged to all that share its session, and one that is alone there gives way to no other.
    """
    total = os.nice(nice)
    with suppress(OSError):  # a kernel without sessions that share cores
        for _ in range(_TRIES):
            try:
                AUTOGROUP.write_text(str(total))
            except BlockingIOError:
                time.sleep(_BETWEEN_S)
            else:
                return
