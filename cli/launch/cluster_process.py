"""`dunlin up` as a child process: started, found by its ready line, ended with everything it started.

For programs that start a cluster of their own: benchmarks, the demo, tests. Knows the command line and nothing of what
runs behind it.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from dunlin.runtime.parent_death import die_with_parent_command

PATIENCE = (
    *("--ready-timeout", "540", "--set", "instance.engine_watch.load_stuck_s=540"),
    *("--set", "dispatcher.outage.give_up_after_s=540"),
)
"""A machine that is busy with other things may take minutes to import torch, after a kill as well."""
_HOME = Path(__file__).resolve().parents[2]
"""Where the package lies, installed or not: from there `python -m dunlin…` finds it."""


class ClusterError(Exception):
    """The cluster did not start, or did not end; the text holds what it said."""


def dunlin_command(*arguments: str) -> list[str]:
    """The command line of the `dunlin_command` command, installed or not; to be run from where the package lies."""
    return [sys.executable, "-m", "cli.main", *arguments]


class ClusterProcess:
    """Owns one `dunlin up` and its data directory, a temporary one unless given.

    A temporary directory stays after an exception, or when `keep` is set: the logs say what happened.
    """

    def __init__(self, *flags: str, data_dir: Path | None = None) -> None:
        self._temporary = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="dunlin-bench-"))
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self.keep = False
        self.http = ""
        self.http_doors: list[str] = []
        self.grpc = ""

    def start(self, limit_s: float = 570.0) -> None:
        """Start it and wait for the ready line. Raises ClusterError with its last words."""
        started = dunlin_command(
            *("up", "--http-port", "0", "--grpc-port", "0", "--data-dir", str(self.data_dir), *PATIENCE, *self._flags)
        )
        # Tied: if the process that started the cluster is killed, it does not stay behind.
        command = die_with_parent_command(started, os.getpid())
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, cwd=_HOME, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True
            )
        assert self._process.stdout is not None
        impatience = threading.Timer(limit_s, self._process.terminate)
        impatience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            impatience.cancel()
        if not line.startswith("ready"):
            self.stop()
            raise ClusterError(f"dunlin up {' '.join(self._flags)}: not ready ({self.output()})")
        words = dict(word.split("=", 1) for word in shlex.split(line)[1:])
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

    def output(self) -> str:
        """What the supervisor reported: deaths, restarts."""
        return self._said.read_text(errors="replace").strip()

    def log(self, name: str) -> str:
        """The log of one process."""
        return (self.data_dir / "logs" / f"{name}.log").read_text(errors="replace")

    def stop(self, limit_s: float = 120.0) -> int:
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
        try:
            self.start()
        except BaseException as error:
            self.stop()
            self._tidy(isinstance(error, KeyboardInterrupt))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._tidy(kind is None and not self.keep)

    def _tidy(self, is_well: bool) -> None:
        if not is_well:
            print(f"logs are kept in {self.data_dir}", file=sys.stderr)
        elif self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
