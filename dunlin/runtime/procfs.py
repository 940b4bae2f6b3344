"""Processes of this machine, as /proc tells of them: which is the child of which, and the CPU time of each."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Every process that `pid` started, directly or not, as /proc says now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it ended meanwhile
                parents.setdefault(int(_fields(int(entry.name))[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def command_line(pid: int) -> str:
    """Its words with a space after each. Raises OSError if it is gone."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def processor_name() -> str:
    """What the machine calls its processor."""
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named.group(1).strip() if named else platform.processor() or platform.machine()


def process_cpu_s(pid: int) -> float:
    """Seconds of processor time that it has used, all its threads together. Raises OSError if it is gone."""
    user, system = _fields(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """What /proc's stat has behind the name, which may hold anything: the state first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
