"""What a version costs: the bytes of a FleetView depend on what changed, not on how many instances there are."""

from dataclasses import replace

import pytest

from dunlin.effects import Address, Effect, Joined, Message, Send
from dunlin.messages.fleet import FleetView, InstanceReport
from dunlin.messages.membership import Member, MembersReset
from dunlin.messages.types import Header
from dunlin.wire import codec
from dunlin.wire.envelopes import FLEET
from services.monitor.config import MonitorConfig
from services.monitor.core import MonitorCore

MONITOR = Address("monitor", "m", 4)
DISPATCHER = Address("dispatcher", "d", 5)
ETCD = Address("etcd", "")
REPORT = InstanceReport(
    ready=True, capacity_slots=1000, free_slots=900, max_positions=512, epoch=1, plan_version=1, group=1
)


def instances(count: int) -> list[Address]:
    # Names and incarnations of equal length, so that only the number of instances differs.
    return [Address("instance", f"instance-{number:04}", 100_000 + number) for number in range(count)]


def running(count: int) -> MonitorCore:
    """A monitor that has published all of them."""
    core = MonitorCore(MONITOR, MonitorConfig(), codec)
    members = tuple(Member(address, "10.0.0.1:7000", "node", 1) for address in instances(count))
    core.receive(0.0, ETCD, MembersReset(members))
    core.receive(0.0, DISPATCHER, Joined())
    for address in instances(count):
        core.receive(0.0, address, Joined())
        core.receive(0.0, address, REPORT)
    core.receive(1.0, instances(count)[0], REPORT)
    return core


def views(effects: list[Effect]) -> list[FleetView]:
    sent: list[Message] = [one.message for one in effects if isinstance(one, Send) and one.to == DISPATCHER]
    return [one for one in sent if isinstance(one, FleetView)]


def frame_bytes(view: FleetView) -> int:
    return len(FLEET.event.encode(Header(MONITOR), view))


@pytest.mark.parametrize(
    "changed", [replace(REPORT, free_slots=800, running=3), replace(REPORT, ready=False)], ids=["load", "readiness"]
)
def test_one_change_costs_the_same_bytes_at_3_and_at_300_instances(changed: InstanceReport) -> None:
    sizes = []
    for count in (3, 300):
        core = running(count)
        (view,) = views(list(core.receive(5.0, instances(count)[1], changed)))
        assert [one.address for one in view.members] == [instances(count)[1]]
        assert view.base_version == view.version - 1
        sizes.append(frame_bytes(replace(view, version=500, base_version=499)))
    assert sizes[0] == sizes[1]
    assert sizes[0] < 200


def test_a_report_that_changes_nothing_costs_no_version() -> None:
    core = running(3)
    version = core.fleet_views.version
    assert views(list(core.receive(5.0, instances(3)[1], REPORT))) == []
    assert core.fleet_views.version == version


def test_who_comes_late_gets_everything_once() -> None:
    core = running(300)
    late = Address("dispatcher", "late", 9)
    sent = [one.message for one in core.receive(6.0, late, Joined()) if isinstance(one, Send) and one.to == late]
    (whole,) = (one for one in sent if isinstance(one, FleetView))
    assert (len(whole.members), whole.base_version) == (300, 0)
    assert frame_bytes(whole) > 10_000
