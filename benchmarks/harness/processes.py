"""Processes of this machine, as campaigns and cluster tests look at them: by pid, through /proc. Knows no dunlin."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STILL = "TtZX"
"""States in which a thread computes nothing: stopped, traced, dead."""


def stop(pid: int) -> None:
    """SIGSTOP a process, and wait until all of its threads stand still: on a busy machine one may go on for a while
    after the signal was sent.
    """
    os.kill(pid, signal.SIGSTOP)
    while any(state not in STILL for state in thread_states(pid)):
        time.sleep(0.001)


def thread_states(pid: int) -> list[str]:
    """The state of each thread as /proc names it, `T` for a stopped one; none: the process is gone."""
    states = []
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.append(file.read_text().rpartition(")")[2].split()[0])
    return states


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still inside."""
    stop(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stopped_if_alive(pid: int) -> Iterator[bool]:
    """The process stands still inside. False: it was gone, as one may be that a report named a moment ago."""
    with contextlib.ExitStack() as still:
        alive = True
        try:
            still.enter_context(stopped(pid))
        except ProcessLookupError:
            alive = False
        yield alive


def resident_bytes(pid: int, kind: str) -> int:
    """Memory of a process that is there: `kind` names the line of /proc's status, such as VmRSS. 0: it is gone."""
    return _memory_bytes(Path(f"/proc/{pid}/status"), kind)


def proportional_bytes(pid: int) -> int:
    """Memory of a process, a page that several have in equal shares: a sum counts it once. 0: the process is gone."""
    return _memory_bytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss")


def _memory_bytes(file: Path, kind: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:")), 0)


def descriptors(pid: int) -> int:
    """Files, sockets and the like that a process has open. 0: it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def gone(pid: int) -> bool:
    """Whether a process is no more (a zombie is none)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pids: list[int], limit_s: float = 60.0) -> list[int]:
    """Wait until none of `pids` is left; those that still are."""
    deadline_s = time.monotonic() + limit_s
    while (left := [pid for pid in pids if not gone(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left
