"""`dunlin up` as a child process: started, found by its ready line, ended with everything it started.

Campaigns and the cluster tests use it. Knows the command line and nothing of what runs behind it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from dunlin.tether import tethered

ROOT = Path(__file__).resolve().parent.parent


class ClusterError(Exception):
    """The cluster did not start, or did not end; the text holds what it said."""


def dunlin(*arguments: str) -> list[str]:
    """The command line of the `dunlin` command in this checkout, installed or not."""
    return [sys.executable, "-m", "dunlin.cli.main", *arguments]


class ClusterProcess:
    """Owns one `dunlin up` and its data directory, a temporary one unless given."""

    def __init__(self, *flags: str, data_dir: Path | None = None) -> None:
        self._temporary = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="dunlin-bench-"))
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self.http = ""
        self.http_doors: list[str] = []
        self.grpc = ""

    def start(self, limit_s: float = 240.0) -> None:
        """Start it and wait for the ready line. Raises ClusterError with its last words."""
        started = dunlin("up", "--http-port", "0", "--grpc-port", "0", "--data-dir", str(self.data_dir), *self._flags)
        # Tied: if whoever measures is killed, the cluster does not stay behind.
        command = tethered(started, os.getpid())
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True
            )
        timer = _Deadline(self._process, limit_s)
        with timer:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        if not line.startswith("ready"):
            self.stop()
            raise ClusterError(f"dunlin up {' '.join(self._flags)}: not ready ({self.said()})")
        words = dict(word.split("=", 1) for word in line.split()[1:])
        self.http_doors = words["http"].split(",")
        self.http, self.grpc = self.http_doors[0], words["grpc"]

    @property
    def _said(self) -> Path:
        return self.data_dir / "up.log"

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """What the supervisor reported: deaths, restarts."""
        return self._said.read_text(errors="replace").strip()

    def log(self, name: str) -> str:
        """The log of one process."""
        return (self.data_dir / "logs" / f"{name}.log").read_text(errors="replace")

    def stop(self, limit_s: float = 40.0) -> int:
        """SIGTERM, wait, SIGKILL at last; the exit code. Again: nothing happens."""
        code = 0
        if self._process is not None:
            self._process.terminate()
            try:
                code = self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        return code

    def __enter__(self) -> "ClusterProcess":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._temporary and kind is None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        elif kind is not None:
            print(f"logs are kept in {self.data_dir}", file=sys.stderr)


class _Deadline:
    """Kills a process that takes too long, so that reading its output cannot hang. SIGALRM: from the main thread."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float) -> None:
        self._process = process
        self._limit_s = limit_s

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, lambda *_: self._process.terminate())
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still inside."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def descendants(pid: int) -> list[int]:
    """Every process that `pid` started, directly or not, as /proc says now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def resident_bytes(pid: int, kind: str) -> int:
    """Memory of a process that is there: `kind` names the line of /proc's status, such as VmRSS. 0: it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:")), 0)


def gone(pid: int) -> bool:
    """Whether a process is no more (a zombie is none)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pids: list[int], limit_s: float = 10.0) -> list[int]:
    """Wait until none of `pids` is left; those that still are."""
    deadline_s = time.monotonic() + limit_s
    while (left := [pid for pid in pids if not gone(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left
