"""A contestant's process as the one that compares sees it."""

import os
import subprocess
import sys
from types import TracebackType

import msgspec

from benchmarks.engine.contestants.serve import READY
from benchmarks.engine.workloads import Setup, Turn, TurnResult
from benchmarks.harness.processes import ROOT
from dunlin.engine.process.options import SPINS

# As an engine's process has them (dunlin.engine.process): how OpenMP's threads wait, and that freed memory is kept.
# The same for all contestants, so that what differs is the software.
_ENVIRONMENT = {
    "GOMP_SPINCOUNT": str(SPINS),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "HF_HUB_OFFLINE": "1",
}


class ContestantProcess:
    """Owns the process. It ends when its stdin does, so also when this process dies."""

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        command = [sys.executable, "-m", f"benchmarks.engine.contestants.{module}", *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, env={**os.environ, **_ENVIRONMENT})

    def __enter__(self) -> "ContestantProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()

    def set_up(self, setup: Setup) -> None:
        """Load the model and fill the KV; blocks until both are done.

        :raises RuntimeError: the process ended; its stderr says why.
        """
        answer = self._ask(setup)
        if answer != READY:
            raise RuntimeError(f"{self.name} answered {answer!r}, not {READY!r}")

    def take(self, turn: Turn) -> TurnResult:
        """Let it measure; blocks until it has. :raises RuntimeError: as `set_up`."""
        return msgspec.json.decode(self._ask(turn), type=TurnResult)

    def _ask(self, question: Setup | Turn) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise RuntimeError(f"{self.name}: its process ended with code {self._process.wait()}; see above")
        return answer
