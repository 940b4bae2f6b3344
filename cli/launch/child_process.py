"""One child process: started in its own process group, watched without being reaped, ended with all it started.

Knows nothing of what the child does.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from dunlin.runtime.child_exit import RunningProcess

_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ChildProcess:
    """Owns one process and its process group.

    The exit is noticed without reaping (WNOWAIT), so that the pid still belongs to the child while its group is swept:
    no signal can reach a stranger that got the number.
    """

    def __init__(self, start: Callable[[int], RunningProcess], log: Path) -> None:
        """Start it, its output appended to `log`. `start` is given the descriptor that the process is to write to, and
        makes it lead a process group. Raises OSError when it cannot be started.
        """
        with log.open("ab") as output:
            self._process = start(output.fileno())
        self.pid = self._process.pid
        self._status: str | None = None

    def exited(self) -> bool:
        """Whether it ended; the first time that it did, what is left of its group is killed too."""
        if self._status is not None:
            return True
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return False
        self.signal_group(signal.SIGKILL)
        code = self._process.wait()
        self._status = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        return True

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def exit_description(self) -> str:
        """How it ended, in words."""
        return self._status or "running"

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it that comes from outside, not from what it did."""
        return self.code is not None and -self.code in _OUTSIDE

    def stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP): it will not answer a SIGTERM."""
        return _state(self.pid) in ("T", "t")

    def terminate(self) -> None:
        """Ask the child, and only it, to end: it stops what it started itself."""
        if not self.exited():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group now, stopped or not."""
        if not self.exited():
            self.signal_group(signal.SIGKILL)

    def signal_group(self, number: signal.Signals) -> None:
        """Send to the whole group. Only before the child is reaped: its pid is the group's number."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which has no name
        return str(number)


def _state(pid: int) -> str:
    """The state letter of a process in /proc, empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def last_line(log: Path, limit_bytes: int = 4096) -> str:
    """The last line of a log with something in it: where a process that could not start says why."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
