"""What `dunlin status` prints, from a FleetStatus."""

import dataclasses
from typing import Any

import pytest

from cli.commands.operate.status import member_state, render
from dunlin.effects import Address
from dunlin.messages.fleet import (
    DispatcherReport,
    FleetStatus,
    InstanceReport,
    KvstoreReport,
    ManagerReport,
    MemberStatus,
)
from dunlin.messages.types import GroupKind, GroupRole, StepTimesSource


def member(**changes: Any) -> MemberStatus:
    report = InstanceReport(ready=True, capacity_slots=100, free_slots=60, running=2, waiting=1, engine_pid=77)
    made = MemberStatus(Address("instance", "instance-0", 12), "node", pid=34, connected=True, instance=report)
    return dataclasses.replace(made, **changes)


def line(one: MemberStatus) -> str:
    return render(FleetStatus(5, (one,))).splitlines()[1]


def test_an_instance_in_one_line() -> None:
    words = line(member()).split()
    assert words[:10] == ["instance", "instance-0", "12", "34", "node", "up", "60", "100", "2", "1"]
    assert "engine 77" in line(member())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "0 steps"),
        ({"step_times": StepTimesSource.PROFILE, "prompt_step_error": 0.2}, "0 steps"),
        ({"step_times": StepTimesSource.LEARNING, "learnt_steps_total": 7}, "learns the times of steps (7 so far)"),
        (
            {"step_times": StepTimesSource.LEARNT, "prompt_step_error": 0.1, "decode_step_error": 0.2},
            "times of steps learnt (off by 20%)",
        ),
    ],
)
def test_an_instance_says_that_it_learns(fields: dict[str, Any], words: str) -> None:
    assert line(member(instance=InstanceReport(**fields))).rstrip().endswith(words)


def test_an_instance_in_a_group_of_several_says_with_whom() -> None:
    def grouped(name: str, part: GroupRole, kind: GroupKind = GroupKind.ELASTIC, group: int = 7) -> MemberStatus:
        report = InstanceReport(ready=True, group=group, kind=kind, part=part, plan_version=3)
        return member(address=Address("instance", name, 1), instance=report)

    fleet = (
        grouped("i-0", GroupRole.MEMBER),
        grouped("i-1", GroupRole.LEADER),
        grouped("i-2", GroupRole.LOCAL, GroupKind.LOCAL, 4),
    )
    first, second, third = render(FleetStatus(5, fleet)).splitlines()[1:4]
    assert "group 7 member of i-1, i-0, plan 3" in first
    assert "group 7 leader of i-1, i-0, plan 3" in second
    assert "group 4 local, plan 3" in third


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (
            {"manager": ManagerReport(epoch=9, long_waiting=2, long_placed=3, elastic_groups=1)},
            "leads, epoch 9, 3 long requests in 1 groups, 2 waiting",
        ),
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
    assert member_state(member(**changes)) == word


def test_the_last_line_is_about_the_view() -> None:
    status = FleetStatus(5, (), suspicions_total=2, reasons_held=8, reasons_lost=1)
    assert render(status).splitlines()[-1] == "view 5; 2 suspicions; 8 reasons held, 1 lost"


def test_columns_line_up_whatever_the_names_and_numbers() -> None:
    long = Address("instance", "instance-with-a-long-name-10", 123456)
    many = InstanceReport(ready=True, capacity_slots=1_000_000, free_slots=7, running=1000, waiting=0)
    others = (
        member(address=long, node="10-0-0-12.rack-7", pid=4_000_000, instance=many),
        member(node="9"),
    )
    header, *lines = render(FleetStatus(5, others)).splitlines()[:-1]
    for name in ("pid", "free", "slots", "running", "waiting"):
        stop = header.index(f" {name} ") + 1 + len(name)
        assert all(one[stop : stop + 2].strip() == "" and one[stop - 1] != " " for one in lines), name
    for name in ("role", "name", "node", "state", "more"):
        start = header.index(name)
        assert all(one[start - 1 : start].strip() == "" and one[start] != " " for one in lines), name


def test_names_with_numbers_are_in_their_order() -> None:
    numbers = (10, 2, 1)
    status = FleetStatus(5, tuple(member(address=Address("instance", f"instance-{n}", 1)) for n in numbers))
    assert [one.split()[1] for one in render(status).splitlines()[1:-1]] == ["instance-1", "instance-2", "instance-10"]
