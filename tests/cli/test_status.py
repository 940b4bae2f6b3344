"""What `dunlin status` prints, from a FleetStatus."""

import dataclasses
from typing import Any

import pytest

from dunlin.cli.status import render, state
from dunlin.effects import Address
from dunlin.messages.fleet import (
    DispatcherReport,
    FleetStatus,
    InstanceReport,
    KvstoreReport,
    ManagerReport,
    MemberStatus,
)


def member(**changes: Any) -> MemberStatus:
    report = InstanceReport(ready=True, capacity_slots=100, free_slots=60, running=2, waiting=1, engine_pid=77)
    made = MemberStatus(Address("instance", "instance-0", 12), "node", pid=34, connected=True, instance=report)
    return dataclasses.replace(made, **changes)


def line(one: MemberStatus) -> str:
    return render(FleetStatus(5, (one,))).splitlines()[1]


def test_an_instance_in_one_line() -> None:
    words = line(member()).split()
    assert words[:9] == ["instance", "instance-0", "12", "34", "node", "up", "60/100", "2", "1"]
    assert "engine 77" in line(member())


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"dispatcher": DispatcherReport(finished_total=7, failed_total=1)}, "7 finished, 1 failed"),
        ({"kvstore": KvstoreReport(capacity_bytes=8 << 20, used_bytes=1 << 20, regions=3)}, "1 of 8 MiB in 3 regions"),
        ({"manager": ManagerReport(epoch=9)}, "leads, epoch 9"),
        ({"manager": ManagerReport()}, "does not lead"),
    ],
)
def test_others_say_what_they_are_about(report: dict[str, Any], words: str) -> None:
    assert words in line(member(instance=None, **report))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "up"),
        ({"connected": False, "suspect": True}, "away"),
        ({"suspect": True}, "suspect"),
        ({"instance": InstanceReport(ready=False)}, "starting"),
        ({"instance": InstanceReport(ready=True, draining=True)}, "draining"),
        ({"instance": None}, "up"),
    ],
)
def test_one_word_for_the_state(changes: dict[str, Any], word: str) -> None:
    assert state(member(**changes)) == word


def test_the_last_line_is_about_the_view() -> None:
    status = FleetStatus(5, (), suspicions_total=2, reasons_held=8, reasons_lost=1)
    assert render(status).splitlines()[-1] == "view 5; 2 suspicions; 8 reasons held, 1 lost"
