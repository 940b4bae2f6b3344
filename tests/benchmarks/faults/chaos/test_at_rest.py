"""A cluster at rest: what it still keeps, what it lacks and what its processes said is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.chaos.at_rest import MORE_DESCRIPTORS, leaked, traceback_ends, tracebacks, unsettled
from dunlin.effects import Address
from dunlin.messages.fleet import DispatcherReport, FleetStatus, InstanceReport, KvstoreReport, MemberStatus

ROLES = {"instance": 1, "kvstore": 1, "dispatcher": 1}
INSTANCE = MemberStatus(
    Address("instance", "i"),
    connected=True,
    instance=InstanceReport(ready=True, plan_version=2, capacity_slots=9, free_slots=6, owned_slots=3, cached_slots=3),
)
KVSTORE = MemberStatus(Address("kvstore", "k"), connected=True, kvstore=KvstoreReport(capacity_bytes=99))
DISPATCHER = MemberStatus(Address("dispatcher", "d"), connected=True, dispatcher=DispatcherReport())


def slots(**more: Any) -> MemberStatus:
    assert INSTANCE.instance is not None
    return replace(INSTANCE, instance=replace(INSTANCE.instance, **more))


def status(*members: MemberStatus) -> FleetStatus:
    return FleetStatus(1, members)


def test_all_there_and_all_free_is_at_rest() -> None:
    assert unsettled(status(INSTANCE, KVSTORE, DISPATCHER), ROLES) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: (INSTANCE, KVSTORE), "I12: 0 of 1 dispatchers"),
        (lambda: (INSTANCE, KVSTORE, replace(DISPATCHER, suspect=True)), "I12: 0 of 1 dispatchers"),
        (lambda: (slots(plan_version=0), KVSTORE, DISPATCHER), "I12: 0 instances are placeable"),
        (lambda: (slots(cached_slots=2), KVSTORE, DISPATCHER), "I8: i: 8 of 9 free"),
        (lambda: (slots(free_slots=5), KVSTORE, DISPATCHER), "I8: i: 8 of 9 slots"),
        (lambda: (INSTANCE, replace(KVSTORE, kvstore=KvstoreReport(99, 7, 1)), DISPATCHER), "I8: k keeps 1 regions"),
        (lambda: (INSTANCE, KVSTORE, replace(DISPATCHER, dispatcher=DispatcherReport(queued=1))), "I12: d has 1 queue"),
    ],
)
def test_whatever_is_left_is_named(change: Callable[[], tuple[MemberStatus, ...]], words: str) -> None:
    found = unsettled(status(*change()), ROLES)
    assert any(text.startswith(words) for text in found), found


def test_processes_with_many_more_descriptors_are_named() -> None:
    before, after = {"a": 10, "b": 10}, {"a": 10 + MORE_DESCRIPTORS, "b": 11 + MORE_DESCRIPTORS, "new": 999}
    assert [text.split()[0] for text in leaked(before, after)] == ["b"]


def test_each_traceback_is_found_by_its_exception(tmp_path: Path) -> None:
    said = "fine\nTraceback (most recent call last):\n  File x\n    y()\nKeyError: 3\nfine again\n"
    assert traceback_ends(said + said) == ["KeyError: 3"] * 2
    assert traceback_ends("fine\nKeyError: 3\n") == []
    (tmp_path / "i.log").write_text(said)
    assert tracebacks(tmp_path.glob("*.log")) == ["i.log: KeyError: 3"]
