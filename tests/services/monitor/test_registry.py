"""The registry: which processes are present, which one is replaced, and what is kept of each."""

import pytest

from dunlin.effects import Address
from dunlin.messages.fleet import DispatcherReport, InstanceReport, KvstoreReport, ManagerReport, MemberStatus
from dunlin.messages.membership import Member
from services.monitor.registry import MAX_GONE_NAMES, Registry, Report

ME = Address("monitor", "m", 5)
I0 = Address("instance", "i0", 10)
RESTARTED = Address("instance", "i0", 20)
DISPATCHER = Address("dispatcher", "d", 7)


def member(address: Address) -> Member:
    return Member(address, "127.0.0.1:9", "node-a", 77)


def test_the_monitor_itself_is_always_there() -> None:
    registry = Registry(ME)
    assert registry.present() == [ME]
    assert registry.is_connected(ME)
    assert registry.connected("monitor") == []


def test_a_process_is_present_by_its_registration_or_its_stream() -> None:
    registry = Registry(ME)
    registry.register(member(I0))
    assert (registry.is_present(I0), registry.is_connected(I0)) == (True, False)
    registry.stream_opened(I0)
    registry.deregister(I0)
    assert (registry.is_present(I0), registry.is_connected(I0)) == (True, True)
    registry.stream_closed(I0)
    assert not registry.is_present(I0)
    assert registry.registered() == []


def test_a_newer_incarnation_replaces_an_older_one_for_ever() -> None:
    registry = Registry(ME)
    registry.stream_opened(I0)
    registry.register(member(RESTARTED))
    assert registry.is_superseded(I0)
    assert not registry.is_present(I0)
    assert registry.present() == [RESTARTED, ME]
    registry.deregister(RESTARTED)
    assert registry.is_superseded(I0)
    assert registry.present() == [ME]


def test_an_older_incarnation_that_comes_late_replaces_nothing() -> None:
    registry = Registry(ME)
    registry.stream_opened(RESTARTED)
    registry.stream_opened(I0)
    assert registry.is_present(RESTARTED)
    assert not registry.is_present(I0)
    assert not registry.is_superseded(Address("kvstore", "i0", 1)), "another role has its own incarnations"
    assert not registry.is_superseded(Address("tool", "t")), "nothing is newer where no incarnation was seen"


def test_of_names_that_are_gone_a_bounded_number_is_remembered_and_of_those_that_are_here_every_one() -> None:
    registry, long_gone = Registry(ME), Address("instance", "long gone", 3)
    for address in (I0, RESTARTED, long_gone):
        registry.register(member(address))
    registry.deregister(RESTARTED)
    registry.deregister(long_gone)
    for number in range(MAX_GONE_NAMES):
        passing = Address("instance", f"p{number}", 100 + number)
        registry.stream_opened(passing)
        registry.stream_closed(passing)
        registry.deregister(passing)  # it is gone once, however often that is said
    assert len(registry._newest) == MAX_GONE_NAMES + len({ME, I0})
    assert registry.is_superseded(I0), "its process is known still, so nobody forgets that it was replaced"
    assert registry.is_superseded(Address("instance", "p0", 99))
    assert not registry.is_superseded(Address("instance", "long gone", 2))


def test_a_name_that_came_back_is_not_forgotten_for_having_gone_before() -> None:
    registry = Registry(ME)
    registry.register(member(I0))
    registry.deregister(I0)
    registry.register(member(RESTARTED))
    for number in range(MAX_GONE_NAMES + 1):
        passing = Address("instance", f"p{number}", 100 + number)
        registry.register(member(passing))
        registry.deregister(passing)
    assert registry.is_superseded(I0)


def test_streams_are_listed_by_role_in_the_order_of_joining() -> None:
    registry, other = Registry(ME), Address("instance", "a", 1)
    for address in (I0, DISPATCHER, other, I0):
        registry.stream_opened(address)
    assert registry.connected("instance") == [I0, other]
    assert registry.connected("instance", "dispatcher") == [I0, DISPATCHER, other]
    registry.stream_closed(I0)
    assert registry.connected("instance") == [other]
    registry.stream_opened(I0)
    assert registry.connected("instance") == [other, I0]


def test_a_report_is_kept_until_the_process_is_gone() -> None:
    registry, report = Registry(ME), InstanceReport(running=3)
    registry.register(member(I0))
    registry.stream_opened(I0)
    registry.record_report(1.0, I0, report)
    registry.stream_closed(I0)
    assert registry.report_of(I0) is report
    registry.deregister(I0)
    assert registry.report_of(I0) is None
    assert registry.status(9.0, I0, suspect=False) == MemberStatus(I0)


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (InstanceReport(), "instance"),
        (DispatcherReport(), "dispatcher"),
        (KvstoreReport(), "kvstore"),
        (ManagerReport(), "manager"),
    ],
)
def test_a_status_line_has_the_registration_and_the_report(report: Report, field: str) -> None:
    registry = Registry(ME)
    registry.register(member(I0))
    registry.record_report(2.0, I0, report)
    status = registry.status(2.5, I0, suspect=True)
    assert (status.node, status.endpoint, status.pid) == ("node-a", "127.0.0.1:9", 77)
    assert (status.connected, status.suspect, status.silent_s) == (False, True, 0.5)
    kept = {name for name in ("instance", "dispatcher", "kvstore", "manager") if getattr(status, name) is not None}
    assert kept == {field}
    assert registry.node_of(I0) == "node-a"
    assert registry.node_of(RESTARTED) == ""


@pytest.mark.parametrize("role", ["instance", "dispatcher", "kvstore", "global_manager"])
def test_a_process_that_never_reports_is_silent_from_when_it_was_first_seen(role: str) -> None:
    registry, address = Registry(ME), Address(role, "x", 10)
    registry.register(member(address))
    registry.see(1.0, address)
    registry.stream_opened(address)
    registry.see(2.0, address)
    assert registry.status(9.0, address, suspect=False).silent_s == 8.0
    registry.record_report(10.0, address, InstanceReport())
    registry.see(11.0, address)
    assert registry.status(12.0, address, suspect=False).silent_s == 2.0
    registry.stream_closed(address)
    registry.deregister(address)
    registry.see(13.0, address)
    assert registry.status(14.0, address, suspect=False).silent_s == 0.0, "it is gone, and nothing is kept"


def test_monitors_report_to_nobody_and_are_not_silent() -> None:
    registry, other = Registry(ME), Address("monitor", "other", 6)
    registry.register(member(other))
    registry.see(1.0, other)
    registry.see(1.0, ME)
    assert [registry.status(9.0, each, suspect=False).silent_s for each in registry.present()] == [0.0, 0.0]


def test_a_report_outlives_the_registration_of_a_process_with_a_stream() -> None:
    registry, report = Registry(ME), InstanceReport(running=3)
    registry.register(member(I0))
    registry.stream_opened(I0)
    registry.record_report(1.0, I0, report)
    registry.deregister(I0)
    assert registry.report_of(I0) is report
    assert registry.status(1.5, I0, suspect=False).silent_s == 0.5
    registry.stream_closed(I0)
    assert registry.report_of(I0) is None
