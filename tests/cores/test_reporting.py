"""Reports to monitors: at once for one that joins, soon after a change, as a heartbeat, and none without a monitor."""

from dunlin.cores.handlers import handlers_of
from dunlin.cores.reporting import Heartbeat, PromptHeartbeat, ReportDue
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.fleet import KvstoreReport

ME = Address("kvstore", "k", 3)
MONITOR, OTHER = Address("monitor", "m", 1), Address("monitor", "n", 2)


def make_reporter() -> Heartbeat:
    return Heartbeat(KvstoreReport, interval_s=0.5)


def make_prompt() -> PromptHeartbeat:
    return PromptHeartbeat(KvstoreReport, interval_s=0.5, after_change_s=0.0625)


def fire(reporter: Heartbeat, now_s: float, counter: int) -> list[Effect]:
    return handlers_of(reporter)[ReportDue](now_s, ME, ReportDue(counter))


def test_one_that_joins_hears_at_once_and_all_hear_at_the_heartbeat() -> None:
    reporter = make_reporter()
    assert reporter.joined(1.0, MONITOR) == [Send(MONITOR, KvstoreReport()), After(0.5, ReportDue(1))]
    assert reporter.joined(1.25, OTHER) == [Send(OTHER, KvstoreReport()), After(0.5, ReportDue(2))]
    assert fire(reporter, 1.5, 1) == [], "a newer timer runs"
    sent = [Send(MONITOR, KvstoreReport()), Send(OTHER, KvstoreReport())]
    assert fire(reporter, 1.75, 2) == [*sent, After(0.5, ReportDue(3))]


def test_a_change_is_reported_soon_and_only_once() -> None:
    reporter = make_prompt()
    reporter.joined(1.0, MONITOR)
    assert reporter.changed(1.125) == [After(0.0625, ReportDue(2))]
    assert reporter.changed(1.15) == [], "a report is due sooner"
    assert fire(reporter, 1.1875, 2) == [Send(MONITOR, KvstoreReport()), After(0.5, ReportDue(3))]
    assert reporter.changed(1.65) == [], "the heartbeat is due sooner"


def test_where_changes_are_reported_all_hear_when_one_joins() -> None:
    reporter = make_prompt()
    reporter.joined(1.0, MONITOR)
    sent = [Send(MONITOR, KvstoreReport()), Send(OTHER, KvstoreReport())]
    assert reporter.joined(1.25, OTHER) == [*sent, After(0.5, ReportDue(2))]


def test_an_order_of_the_core_may_report_at_once_with_the_heartbeat_going_on() -> None:
    reporter = make_reporter()
    reporter.joined(1.0, MONITOR)
    assert reporter.sends() == [Send(MONITOR, KvstoreReport())]
    assert fire(reporter, 1.5, 1) == [Send(MONITOR, KvstoreReport()), After(0.5, ReportDue(2))]


def test_without_a_monitor_the_heartbeat_stops() -> None:
    reporter = make_reporter()
    reporter.joined(1.0, MONITOR)
    reporter.gone(MONITOR)
    reporter.gone(OTHER)
    assert [fire(reporter, 1.5, 1), reporter.report_now(1.6), reporter.sends()] == [[], [], []]
