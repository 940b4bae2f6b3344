"""Processes that are stopped: one that has ended meanwhile is told from one that stands still."""

import os
import signal
import subprocess
import sys

import pytest

from benchmarks.harness.processes import STILL, stop, stopped, stopped_if_alive, thread_states


def test_a_process_stands_still_inside_and_goes_on_after() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with stopped_if_alive(process.pid) as alive:
            assert alive
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED)[1])
        process.communicate(b"\n")


BUSY = """
import threading
for _ in range(8):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
print(flush=True)
"""


def test_all_threads_of_a_process_stand_still_once_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(20):
            stop(process.pid)
            states = thread_states(process.pid)
            assert len(states) == 9
            assert all(state in STILL for state in states)
            os.kill(process.pid, signal.SIGCONT)
        process.kill()


def test_a_process_that_is_gone_is_no_error_unless_it_must_be_there() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with stopped_if_alive(process.pid) as alive:
        assert not alive
    with pytest.raises(ProcessLookupError), stopped(process.pid):
        pass
