"""The number of torch's compute threads, fitted to the cores that other processes leave.

Reads what the kernel says of this process's threads and of the cores it may use. Where the kernel says nothing, the
number stays as it is.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dunlin.engine.process.thread_policy import CpuTimes, ThreadCountPolicy

LOOK_S = 0.2
"""Seconds between two looks; a look costs about 0.1 ms."""
_NS = 1e-9
_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")


class ComputeThreadPool:
    """Owns torch's number of threads: `most` until `may_be` gives more choices. Call `adapt` between steps."""

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._cores = os.sched_getaffinity(0)
        self._count = self._most = most
        self._has_told = False
        self.allow([most])

    def allow(self, choices: Sequence[int]) -> None:
        """Choose among `choices` from now on, the highest first."""
        self._policy = ThreadCountPolicy(choices, len(self._cores))
        self._next_look_s = self._clock() if len(choices) > 1 else float("inf")
        self._count = max(choices)
        torch.set_num_threads(self._count)

    def adjust(self) -> None:
        """Take another number of threads if a look is due and the load of the cores has changed."""
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        times = read_cpu_times(now_s, self._cores)
        self._next_look_s = now_s + LOOK_S if times is not None else float("inf")
        count = self._count if times is None else self._policy.update(times)
        if count != self._count:
            torch.set_num_threads(count)
            self._tell(count)
            self._count = count

    def _tell(self, count: int) -> None:
        if count < self._count and not self._has_told:
            self._has_told = True  # once: it may go up and down as often as others come and go
            text = f"computing with {count} instead of {self._most} threads while others keep the cores busy"
            print(f"dunlin engine {os.getpid()}: {text}", file=sys.stderr, flush=True)


def read_cpu_times(now_s: float, cores: set[int]) -> CpuTimes | None:
    """The CPU times now; None where the kernel keeps no such account."""
    try:
        waited_ns = sum(_waited_ns(task) for task in os.listdir(_TASKS))
        busy_s = _busy_s(_STAT.read_text(), cores)
    except (OSError, ValueError, IndexError):
        return None
    return CpuTimes(now_s, waited_ns * _NS, time.process_time(), busy_s)


def _waited_ns(task: str) -> int:
    """How long a thread was ready and had no core; 0 if it ended meanwhile, or the kernel does not count that."""
    try:
        return int((_TASKS / task / "schedstat").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _busy_s(stat: str, cores: set[int]) -> float:
    """Busy seconds of `cores` from `/proc/stat`: all columns but idle, I/O wait, and guests (counted twice)."""
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name in names:
            user, nice, system, _, _, *rest = map(int, columns[:8])
            ticks += user + nice + system + sum(rest)
    return ticks / os.sysconf("SC_CLK_TCK")
