"""The monitor's watchdog over one instance: what is progress, and when it is suspected or trusted again."""

import pytest

from dunlin.messages.fleet import InstanceReport
from services.monitor.config import LivenessConfig
from services.monitor.watchdog import MOST_KEPT, InstanceWatchdog, KeptGaps

CONFIG = LivenessConfig(silent_s=3.0, stuck_s=10.0)


def watchdog(now_s: float, kept: KeptGaps | None = None) -> InstanceWatchdog:
    return InstanceWatchdog(now_s, CONFIG, (kept or KeptGaps(CONFIG)).take(now_s, "i"))


def busy(safepoints: int = 1, steps: int = 1, pid: int = 7, outstanding: int = 1) -> InstanceReport:
    return InstanceReport(safepoints=safepoints, steps_total=steps, engine_pid=pid, outstanding_steps=outstanding)


def reports_until(watch: InstanceWatchdog, stop_s: int, report: InstanceReport, start_s: int = 0) -> None:
    for second in range(start_s, stop_s + 1):
        watch.observe(second, report)


def report_regularly(watch: InstanceWatchdog, halves: int, start_s: float = 0.0) -> None:
    """So many reports, half a second apart, the first half a second after the start."""
    for half in range(1, halves + 1):
        watch.observe(start_s + half / 2, busy(outstanding=0))


def next_incarnation(kept: KeptGaps) -> InstanceWatchdog:
    """The one that comes at 45 s, after one that reported regularly until 39.5 s."""
    first = watchdog(0.0, kept)
    report_regularly(first, 79)
    kept.keep("i", first.gaps)
    return watchdog(45.0, kept)


def test_an_instance_is_suspect_once_it_is_silent_for_the_limit() -> None:
    watch = watchdog(5.0)
    assert not watch.update_suspicion(7.9)
    assert watch.why is None
    assert watch.update_suspicion(8.0)
    assert watch.suspect
    assert watch.why is not None
    assert (watch.why.policy, watch.why.figures[0].value) == ("silence", 3.0)
    assert not watch.update_suspicion(9.0), "it changes once"


def test_a_report_ends_the_suspicion() -> None:
    watch = watchdog(0.0)
    assert watch.update_suspicion(3.0)
    watch.observe(4.0, InstanceReport(safepoints=6, steps_total=2))
    assert watch.update_suspicion(4.0)
    assert not watch.suspect
    assert watch.why is not None
    assert (watch.why.chosen, [figure.value for figure in watch.why.figures]) == ("trust", [6, 2])


def test_outstanding_work_without_a_safepoint_is_stuck() -> None:
    watch = watchdog(0.0)
    reports_until(watch, 9, busy())
    assert not watch.update_suspicion(9.9)
    watch.observe(10.0, busy())
    assert watch.update_suspicion(10.0)
    assert watch.why is not None
    assert {figure.name: figure.value for figure in watch.why.figures} == {
        "unchanged_s": 10.0,
        "limit_s": 10.0,
        "outstanding_steps": 1,
        "safepoints": 1,
    }


def test_an_instance_that_never_reported_is_not_stuck_but_silent() -> None:
    config = LivenessConfig(silent_s=3.0, stuck_s=1.0)
    watch = InstanceWatchdog(0.0, config, KeptGaps(config).take(0.0, "i"))
    assert not watch.update_suspicion(2.9)
    assert watch.update_suspicion(3.0)


@pytest.mark.parametrize("progress", [busy(safepoints=2), busy(steps=2), busy(pid=8), busy(outstanding=0)])
def test_each_of_these_is_progress(progress: InstanceReport) -> None:
    watch = watchdog(0.0)
    reports_until(watch, 8, busy())
    watch.observe(9.0, progress)
    watch.observe(16.5, progress)
    watch.observe(18.9, progress)
    assert not watch.update_suspicion(18.9)


def test_an_idle_instance_is_never_stuck_and_new_work_has_the_whole_limit() -> None:
    watch = watchdog(0.0)
    reports_until(watch, 40, busy(outstanding=0))
    assert not watch.update_suspicion(40.0)
    reports_until(watch, 50, busy(), start_s=41)
    assert not watch.update_suspicion(50.9)
    watch.observe(51.0, busy())
    assert watch.update_suspicion(51.0)


def test_after_a_pause_of_the_monitor_the_clocks_start_anew() -> None:
    watch = watchdog(0.0)
    watch.observe(0.0, busy())
    watch.restart_clocks(30.0)
    assert not watch.update_suspicion(32.9)
    assert watch.update_suspicion(33.0)


def test_a_pause_of_the_monitor_clears_no_suspicion() -> None:
    watch = watchdog(0.0)
    assert watch.update_suspicion(3.0)
    watch.restart_clocks(30.0)
    assert not watch.update_suspicion(30.0)
    assert watch.suspect


@pytest.mark.parametrize(("gap_s", "limit_s"), [(0.4, 1.25), (0.75, 1.875), (2.0, 3.0)])
def test_after_regular_reports_a_silence_is_seen_sooner(gap_s: float, limit_s: float) -> None:
    watch = watchdog(0.0)
    now_s = 0.0
    while now_s < 31.0:
        now_s += gap_s
        watch.observe(now_s, busy(outstanding=0))
        assert not watch.update_suspicion(now_s)
    assert not watch.update_suspicion(now_s + limit_s - 0.01)
    assert watch.update_suspicion(now_s + limit_s + 0.01)
    assert watch.why is not None
    assert {figure.name: figure.value for figure in watch.why.figures}["limit_s"] == pytest.approx(limit_s)


def test_one_long_gap_is_believed_for_half_a_minute() -> None:
    watch = watchdog(0.0)
    report_regularly(watch, 79)
    watch.observe(40.6, busy(outstanding=0))
    assert not watch.update_suspicion(43.3)
    assert watch.update_suspicion(43.5)


def test_after_a_pause_of_the_monitor_gaps_are_not_known() -> None:
    watch = watchdog(0.0)
    report_regularly(watch, 79)
    watch.restart_clocks(49.5)
    watch.observe(50.0, busy(outstanding=0))
    assert not watch.update_suspicion(52.9)
    assert watch.update_suspicion(53.0)


def test_the_next_incarnation_is_expected_to_report_as_regularly() -> None:
    kept = KeptGaps(CONFIG)
    second = next_incarnation(kept)
    report_regularly(second, 12, 45.0)
    assert not second.update_suspicion(52.2)
    assert second.update_suspicion(52.25)
    assert watchdog(60.0, kept).gaps is not second.gaps, "taken once"


def test_the_next_incarnation_has_the_whole_limit_while_it_is_young() -> None:
    second = next_incarnation(KeptGaps(CONFIG))
    report_regularly(second, 4, 45.0)
    assert not second.update_suspicion(49.9)
    assert second.update_suspicion(50.0)


def test_gaps_of_few_names_are_kept() -> None:
    kept = KeptGaps(CONFIG)
    gaps = [kept.take(0.0, "new") for _ in range(MOST_KEPT + 1)]
    for number, each in enumerate(gaps):
        kept.keep(f"i{number}", each)
    assert kept.take(1.0, "i0") is not gaps[0]
    assert kept.take(1.0, "i1") is gaps[1]
    assert kept.take(1.0, f"i{MOST_KEPT}") is gaps[-1]
