"""A child process without `subprocess`: its exit code, a limit to waiting, and a tracer that reaps it first."""

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from dunlin.runtime.fork_server.forked_process import ForkedProcess


def started(code: Callable[[], int]) -> ForkedProcess:
    pid = os.fork()
    if not pid:
        os._exit(code())
    return ForkedProcess(pid)


def paused() -> int:
    signal.pause()
    return 0


def test_the_exit_code_is_kept() -> None:
    process = started(lambda: 7)
    assert process.wait() == process.poll() == process.returncode == 7


def test_a_killed_one_has_the_signals_number() -> None:
    process = started(paused)
    assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.kill()  # reaped: that number may be another process's by now


def test_waiting_has_a_limit() -> None:
    process = started(paused)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    process.wait()


def test_one_that_a_tracer_has_not_let_go_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handle says that it ended, and a look without waiting finds nothing to reap."""
    process, waitpid = started(lambda: 3), os.waitpid

    def traced(pid: int, options: int) -> tuple[int, int]:
        return (0, 0) if options & os.WNOHANG else waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", traced)
    assert process.wait() == 3
