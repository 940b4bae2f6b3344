"""Work beside a process that serves has a low priority; the thread that waits for it keeps its own."""

import os
import threading

import pytest

from dunlin.engine.process.background import NICENESS, run_at_low_priority


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_thread_that_works_steps_back() -> None:
    before = niceness()
    assert run_at_low_priority(niceness) == max(before, NICENESS)
    assert niceness() == before


def test_what_goes_wrong_there_is_told_here() -> None:
    with pytest.raises(ZeroDivisionError):
        run_at_low_priority(lambda: 1 / 0)
