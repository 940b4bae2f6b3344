"""One child: its group and its session."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cli.launch.child_process import ChildProcess
from cli.launch.process_specs import ProcessSpec
from cli.launch.process_starter import start_program

PROGRAM = "import os; print(os.getpid(), os.getpgid(0), os.getsid(0), flush=True)"


def started(program: str, log: Path) -> ChildProcess:
    spec = ProcessSpec("x", "test", (sys.executable, "-S", "-c", program))
    return ChildProcess(lambda output: start_program(spec, output, os.environ), log)


def test_a_child_leads_a_group_of_the_supervisors_session(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = started(PROGRAM, log)
    while not child.exited():
        time.sleep(0.01)
    assert log.read_text().split() == [str(child.pid), str(child.pid), str(os.getsid(0))]
    assert (child.code, child.exit_description) == (0, "exit code 0")


@pytest.mark.parametrize(("number", "words"), [(signal.SIGTERM, "signal SIGTERM"), (40, "signal 40")])
def test_how_a_child_ended_is_told_of_real_time_signals_too(tmp_path: Path, number: int, words: str) -> None:
    """Those but the first and the last have no name in Python."""
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    child = started(program, tmp_path / "log")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.exited()
    assert (child.code, child.exit_description) == (-number, words)
