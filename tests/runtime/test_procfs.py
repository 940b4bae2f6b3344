import os
import subprocess
import sys
import time

import pytest

from dunlin.runtime.procfs import command_line, descendants, process_cpu_s

CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()', 'grandchild (odd) name'])"


def test_children_of_children_are_descendants_with_their_command_lines() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as child:
        limit_s = time.monotonic() + 300
        while len(below := descendants(child.pid)) < 1 and time.monotonic() < limit_s:
            time.sleep(0.01)
        assert child.pid in descendants(os.getpid())
        assert set(below) <= set(descendants(os.getpid()))
        (grandchild,) = below
        while "grandchild" not in command_line(grandchild) and time.monotonic() < limit_s:
            time.sleep(0.01)
        assert command_line(grandchild).endswith("-c input() grandchild (odd) name ")
    assert child.pid not in descendants(os.getpid())


def test_what_a_process_computed_is_told_in_seconds() -> None:
    before_s, own_s = process_cpu_s(os.getpid()), time.process_time()
    while time.process_time() < own_s + 0.1:
        pass
    assert process_cpu_s(os.getpid()) - before_s == pytest.approx(0.1, abs=0.05)


def test_a_process_that_is_gone_is_told_as_such() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert descendants(child.pid) == []
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        process_cpu_s(child.pid)
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        command_line(child.pid)
