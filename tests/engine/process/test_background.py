"""Work beside a process that serves has a low priority; the thread that waits for it keeps its own. Another one gives
signs of life while that one can give none.
"""

import os
import threading

import pytest

from dunlin.engine.process.background import COUNTER, NICENESS, counted, run_at_low_priority


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_thread_that_works_steps_back() -> None:
    before = niceness()
    assert run_at_low_priority(niceness) == max(before, NICENESS)
    assert niceness() == before


def test_what_goes_wrong_there_is_told_here() -> None:
    with pytest.raises(ZeroDivisionError):
        run_at_low_priority(lambda: 1 / 0)


def counting_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == COUNTER]


def test_signs_of_life_are_given_while_the_block_runs_and_no_longer() -> None:
    given = threading.Semaphore(0)
    with counted(given.release, most_s=1000.0, every_s=0.001):
        assert all(given.acquire(timeout=60) for _ in range(3))
    assert counting_threads() == []


def test_signs_of_life_end_for_what_takes_too_long() -> None:
    given: list[int] = []
    with counted(lambda: given.append(1), most_s=0.005, every_s=0.001):
        for thread in counting_threads():
            thread.join(60)
        assert len(given) == 5


def test_what_the_block_raises_ends_them_too() -> None:
    with pytest.raises(ZeroDivisionError), counted(lambda: None, most_s=1000.0, every_s=100.0):
        _ = 1 / 0
    assert counting_threads() == []
