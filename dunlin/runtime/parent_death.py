"""Ties a process to its parent: the kernel kills it when the parent's thread that started it ends, however it ends.

`die_with_parent` is called by a child early in its life. For programs that cannot call it themselves (etcd):
`python -m dunlin.runtime.parent_death PPID -- CMD ARGS…` ties and then becomes CMD, which keeps the pid and the tie.
Imports nothing of dunlin and little of Python, so that it starts in a few milliseconds. Linux only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_USAGE = "usage: python -m dunlin.runtime.parent_death PPID -- CMD ARGS..."


class ParentGone(RuntimeError):
    """The parent ended before the tie was made: nothing would ever stop this process, so it should not start."""


def die_with_parent(expected_ppid: int) -> None:
    """Have the kernel send SIGKILL to this process when the *thread* that spawned it ends.

    The tie belongs to the spawning thread, not its process: spawn from a thread that lives as long as the child may.
    A fork clears the tie, an exec keeps it.

    Raises ParentGone when the parent is not `expected_ppid` (any more), OSError when the kernel refuses.
    """
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), "PR_SET_PDEATHSIG")
    # Checked after the call: a parent that died before it sends no signal.
    parent = os.getppid()
    if parent != expected_ppid:
        raise ParentGone(f"started by process {expected_ppid}, but the parent is {parent}")


def prctl(option: int, value: int, name: str) -> None:
    """Set an option of this process. Raises OSError with the option's `name` when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({name}): {os.strerror(code)}")


def die_with_parent_command(command: list[str], parent_pid: int) -> list[str]:
    """The command line that runs `command` tied to `parent_pid`, which must be the one that spawns it.

    Runs this file by its path, without site-packages: it must start even where dunlin is not installed, and fast.
    """
    return [sys.executable, "-S", "-P", os.path.abspath(__file__), str(parent_pid), "--", *command]


def main(arguments: list[str]) -> int:
    """Tie, then become the command; returns only on failure, with the exit code."""
    if len(arguments) < 3 or not arguments[0].isdecimal() or arguments[1] != "--":
        print(_USAGE, file=sys.stderr)
        return 2
    command = arguments[2:]
    try:
        die_with_parent(int(arguments[0]))
        os.execvp(command[0], command)
    except ParentGone as gone:
        print(f"dunlin.runtime.parent_death: {gone}; not starting {command[0]}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"dunlin.runtime.parent_death: cannot run {command[0]}: {error}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
