"""How much memory can be had on this machine, as the kernel tells. Linux only."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")
FREE_WAIT_S, LOOK_EVERY_S = 10.0, 0.2
"""Memory of a process that has just ended is free after a moment."""


def available_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be had now: the machine's, and no more than this process's control group allows."""
    lines = (proc / "meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min(machine, _group_bytes(proc, cgroup, machine))


def _group_bytes(proc: Path, cgroup: Path, default: int) -> int:
    """What the control group (version 2) leaves; `default` where there is no limit or no such group."""
    try:
        own = next(line for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        group = cgroup / own[3:].lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return default
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - used + int(stat.get("inactive_file", "0"))
    except (OSError, StopIteration, ValueError):
        return default


def look_until(
    look: Callable[[], Found],
    is_enough: Callable[[Found], bool],
    wait_s: float = FREE_WAIT_S,
    beat: Callable[[], object] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Found:
    """What `look` finds once it is enough, or after `wait_s`; `beat` is called before each pause."""
    for _ in range(round(wait_s / LOOK_EVERY_S)):
        found = look()
        if is_enough(found):
            return found
        beat()
        sleep(LOOK_EVERY_S)
    return look()
