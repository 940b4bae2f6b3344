"""When a dead process is started again, and when no more."""

from cli.launch.restart_policy import RestartHistory, RestartPolicy


def restarts(**changes: float) -> RestartHistory:
    return RestartHistory(RestartPolicy(**changes))  # type: ignore[arg-type]


def test_waits_double_up_to_the_longest() -> None:
    deaths = restarts(first_delay_s=1, longest_delay_s=10, limit=99)
    assert [deaths.died(lived_s=0) for _ in range(6)] == [1, 2, 4, 8, 10, 10]


def test_a_calm_life_starts_over() -> None:
    """It starts again at once; what follows waits as at first."""
    deaths = restarts(limit=99, reset_after_s=15)
    assert [deaths.died(0), deaths.died(0)] == [1, 2]
    assert deaths.died(lived_s=15) == 0
    assert [deaths.died(lived_s=14.9), deaths.died(0)] == [1, 2]


def test_gives_up_after_more_than_the_limit_in_a_row() -> None:
    deaths = restarts(limit=3)
    assert [deaths.died(0) is None for _ in range(4)] == [False, False, False, True]
    assert deaths.total == 4


def test_a_process_that_dies_whenever_it_starts_stays_down_in_the_end() -> None:
    deaths = restarts()
    assert [deaths.died(lived_s=1.0) is None for _ in range(11)] == [False] * 10 + [True]


def test_one_that_is_killed_now_and_then_is_always_started_again() -> None:
    deaths = restarts()
    assert [deaths.died(lived_s=60.0) for _ in range(100)] == [0.0] * 100


def test_a_calm_life_that_ends_by_itself_is_the_first_death_of_a_row() -> None:
    deaths = restarts(limit=2)
    assert [deaths.died(lived_s) for lived_s in (60.0, 0.0, 0.0)] == [0.0, 1.0, None]
    deaths = restarts(limit=2)
    assert [deaths.died(60.0, killed=True), deaths.died(0.0), deaths.died(0.0), deaths.died(0.0)] == [0, 1, 2, None]


def test_one_that_is_killed_again_and_again_is_started_again_and_again() -> None:
    deaths = restarts(limit=3)
    assert [deaths.died(5.0, killed=True) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert {deaths.died(5.0, killed=True) for _ in range(5000)} == {10}
    assert all(deaths.died(5.0, killed=True) == 10 for _ in range(100))


def test_kills_do_not_excuse_what_it_does_itself() -> None:
    deaths = restarts(limit=2)
    found = [deaths.died(1.0, killed=killed) is None for killed in (False, True, False, True, False)]
    assert found == [False, False, False, False, True]
