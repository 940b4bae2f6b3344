"""Memory that grows is found, memory that is settled is not, and a short run says nothing."""

import pytest

from benchmarks.engine.soak.engine_child import ProcessMemory
from benchmarks.engine.soak.memory_log import GROWTH_MIB, MemoryLog, slope


def log_of(*samples: tuple[float, float, int]) -> MemoryLog:
    log = MemoryLog("e")
    for minute, (anonymous, shared, descriptors) in enumerate(samples):
        log.add(minute, ProcessMemory(anonymous, shared, descriptors))
    return log


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([0, 1, 2, 3], [1, 3, 5, 7]) == pytest.approx(2)
    assert slope([0, 1, 2, 3], [5, 5, 5, 5]) == 0
    assert slope([1], [5]) == 0


def test_what_settles_in_the_first_quarter_is_flat() -> None:
    log = log_of(*[(100 + min(minute, 10) * 20, 50, 9) for minute in range(60)])
    assert log.violations() == []
    assert log.slopes() == pytest.approx((0, 0))


def test_growth_is_found_in_either_memory() -> None:
    step = 1.1 * GROWTH_MIB / 45
    assert log_of(*[(100 + minute * step, 50, 9) for minute in range(61)]).violations() == [
        f"e: own memory grew by {45 * step:.1f} MiB"
    ]
    assert "shared memory" in log_of(*[(100, 50 + minute * step, 9) for minute in range(61)]).violations()[0]


def test_more_descriptors_are_found() -> None:
    assert log_of(*[(100, 50, 9 + (minute > 50)) for minute in range(60)]).violations() == ["e: 9 descriptors, then 10"]


def test_a_short_run_says_nothing() -> None:
    assert log_of((1, 1, 1), (900, 900, 900)).violations() == []
