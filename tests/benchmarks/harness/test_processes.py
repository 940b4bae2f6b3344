"""Processes that are stopped: one that has ended meanwhile is told from one that stands still."""

import os
import subprocess
import sys

import pytest

from benchmarks.harness.processes import stopped, stopped_if_alive


def test_a_process_stands_still_inside_and_goes_on_after() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with stopped_if_alive(process.pid) as alive:
            assert alive
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED)[1])
        process.communicate(b"\n")


def test_a_process_that_is_gone_is_no_error_unless_it_must_be_there() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with stopped_if_alive(process.pid) as alive:
        assert not alive
    with pytest.raises(ProcessLookupError), stopped(process.pid):
        pass
