"""The engine's watchdog: an engine is stuck when it has work and passes no safepoint."""

import pytest

from services.instance.engine.watchdog import SLEPT_AFTER_S, EngineWatchdog


def checked(watch: EngineWatchdog, start_s: float, stop_s: float, safepoints: int, outstanding: int = 1) -> bool:
    """Whether the engine was stuck at any of the checks, one every half second."""
    checks = round((stop_s - start_s) / 0.5)
    return any(watch.check(start_s + 0.5 * number, safepoints, outstanding) for number in range(checks + 1))


def test_an_engine_is_stuck_at_the_limit_and_the_reason_has_the_figures() -> None:
    watch = EngineWatchdog(2.0, 2.0)
    assert not checked(watch, 0.0, 1.5, safepoints=9)
    why = watch.check(2.0, 9, 3)
    assert why is not None
    assert {figure.name: figure.value for figure in why.figures} == {
        "unchanged_s": 2.0,
        "limit_s": 2.0,
        "outstanding": 3,
        "safepoints": 9,
    }


def test_it_is_said_once_per_limit() -> None:
    watch = EngineWatchdog(2.0, 2.0)
    assert checked(watch, 0.0, 2.0, safepoints=9)
    assert not checked(watch, 2.5, 4.0, safepoints=9)
    assert watch.check(4.5, 9, 1) is not None


def test_a_safepoint_is_progress() -> None:
    watch = EngineWatchdog(2.0, 2.0)
    assert not checked(watch, 0.0, 1.5, safepoints=9)
    assert not checked(watch, 2.0, 3.5, safepoints=10)
    assert watch.safepoints == 10


def test_an_idle_engine_is_not_stuck_and_new_work_has_the_whole_limit() -> None:
    watch = EngineWatchdog(2.0, 2.0)
    assert not checked(watch, 0.0, 10.0, safepoints=9, outstanding=0)
    assert not checked(watch, 10.5, 12.0, safepoints=9)
    assert watch.check(12.5, 9, 1) is not None


@pytest.mark.parametrize(("gap_s", "stuck"), [(SLEPT_AFTER_S, True), (SLEPT_AFTER_S + 0.25, False)])
def test_a_long_gap_between_checks_is_the_process_that_slept(gap_s: float, stuck: bool) -> None:
    watch = EngineWatchdog(2.0, 2.0)
    assert not checked(watch, 0.0, 1.5, safepoints=9)
    assert (watch.check(1.5 + gap_s, 9, 1) is not None) is stuck


def served_regularly(watch: EngineWatchdog, start_s: float, seconds: float, gap_s: float = 0.1) -> float:
    """Let it pass a safepoint every `gap_s`; the time of the last one."""
    now_s = start_s
    for number in range(round(seconds / gap_s) + 2):
        now_s = start_s + number * gap_s
        assert watch.check(now_s, number + 1, 1) is None
    return now_s


def stuck_after(watch: EngineWatchdog, since_s: float) -> float:
    """Seconds until it is stuck, looked at every 0.05."""
    looks = (number / 20 for number in range(1, 200))
    return next(look for look in looks if watch.check(since_s + look, watch.safepoints, 1) is not None)


def test_an_engine_that_passed_safepoints_regularly_is_missed_sooner() -> None:
    watch = EngineWatchdog(3.0, 1.25)
    assert stuck_after(watch, served_regularly(watch, 0.0, 30.0)) == 1.25


def test_four_of_its_longest_gaps_are_waited_for() -> None:
    watch = EngineWatchdog(3.0, 1.25)
    assert stuck_after(watch, served_regularly(watch, 0.0, 40.0, gap_s=0.5)) == 2.0
    slow = EngineWatchdog(3.0, 1.25)
    assert stuck_after(slow, served_regularly(slow, 0.0, 40.0, gap_s=0.9)) == 3.0


def test_half_a_minute_of_rest_says_nothing_of_its_safepoints() -> None:
    watch = EngineWatchdog(3.0, 1.25)
    ended_s = served_regularly(watch, 0.0, 1.0)
    for tenth in range(600):
        assert watch.check(ended_s + tenth / 10, watch.safepoints, 0) is None
    assert stuck_after(watch, ended_s + 59.9) == 3.05, "3 s from the look that finds it busy"


def test_the_next_engine_is_expected_to_be_as_regular_after_its_first_seconds() -> None:
    watch = EngineWatchdog(3.0, 1.25)
    ended_s = served_regularly(watch, 0.0, 30.0)
    watch.on_engine_ready()
    assert stuck_after(watch, ended_s) == 3.0
    watch = EngineWatchdog(3.0, 1.25)
    ended_s = served_regularly(watch, 0.0, 30.0)
    watch.on_engine_ready()
    assert stuck_after(watch, served_regularly(watch, ended_s + 20.0, 6.0)) == 1.25


def test_the_successor_of_one_that_was_stuck_is_waited_for_twice_as_long() -> None:
    """It may have been slow only, and would be ended for the same again."""
    watch = EngineWatchdog(9.0, 1.25)
    now_s = served_regularly(watch, 0.0, 30.0)
    for limit_s in (1.25, 2.5, 5.0, 9.0):
        assert stuck_after(watch, now_s) == limit_s
        watch.on_engine_ready()
        now_s = served_regularly(watch, now_s + limit_s + 1.0, 20.0)
    assert stuck_after(watch, served_regularly(watch, now_s + 0.1, 20.0)) == 1.25, "half a minute of it was regular"
