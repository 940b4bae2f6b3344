"""When a dead process is started again, and when no more."""

import pytest

from dunlin.launch.restarts import RestartPolicy, Restarts


def restarts(**changes: float) -> Restarts:
    return Restarts(RestartPolicy(**changes))  # type: ignore[arg-type]


def test_waits_double_up_to_the_longest() -> None:
    deaths = restarts(first_delay_s=1, longest_delay_s=10, limit=99)
    assert [deaths.died(float(i), lived_s=0) for i in range(6)] == [1, 2, 4, 8, 10, 10]


def test_a_calm_life_starts_over() -> None:
    deaths = restarts(limit=99, calm_s=15)
    assert [deaths.died(0, 0), deaths.died(1, 0)] == [1, 2]
    assert deaths.died(20, lived_s=15) == 1
    assert deaths.died(21, lived_s=14.9) == 2


def test_gives_up_at_more_than_the_limit_within_the_window() -> None:
    deaths = restarts(limit=3, window_s=60)
    assert [deaths.died(at, 0) is None for at in (0.0, 1.0, 2.0, 60.0)] == [False, False, False, True]
    assert deaths.total == 4


@pytest.mark.parametrize(("last_s", "gives_up"), [(60.0, True), (60.001, False)])
def test_old_deaths_are_forgotten(last_s: float, gives_up: bool) -> None:
    deaths = restarts(limit=2, window_s=60)
    deaths.died(0, 0)
    deaths.died(30, 0)
    assert (deaths.died(last_s, 0) is None) == gives_up
