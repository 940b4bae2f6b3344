"""The mirror of the fleet: which views it applies, and what it says of the last one."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import GroupRole
from services.global_manager.fleet_mirror import FleetMirror

MONITOR = Address("monitor", "m", 3)
I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)


def member(address: Address = I0, **fields: Any) -> MemberView:
    return MemberView(address, **({"ready": True, "capacity_slots": 100} | fields))


def mirror(*members: MemberView) -> FleetMirror:
    """A mirror that holds version 5 with these members."""
    fleet = FleetMirror()
    assert fleet.apply(MONITOR, FleetView(5, members))
    return fleet


def test_a_whole_view_replaces_all_members() -> None:
    fleet = mirror(member(I0))
    assert fleet.apply(MONITOR, FleetView(9, (member(I1),)))
    assert list(fleet.members) == [I1]
    assert fleet.is_reshaped


def test_a_difference_updates_adds_and_removes() -> None:
    fleet = mirror(member(I0), member(I1))
    newcomer = Address("instance", "i2", 12)
    changes = (member(I1, free_slots=7), member(newcomer))
    assert fleet.apply(MONITOR, FleetView(6, changes, base_version=5, removed=(I0,)))
    assert list(fleet.members) == [I1, newcomer]
    assert fleet.members[I1].free_slots == 7


@pytest.mark.parametrize("base", [4, 6])
def test_a_difference_to_another_version_is_dropped(base: int) -> None:
    fleet = mirror(member())
    assert not fleet.apply(MONITOR, FleetView(7, (member(free_slots=7),), base_version=base))
    assert fleet.members[I0].free_slots == 0
    assert fleet.apply(MONITOR, FleetView(6, (), base_version=5)), "the version held did not change"


def test_a_difference_of_another_monitor_needs_a_whole_view_first() -> None:
    fleet, restarted = mirror(member()), Address("monitor", "m", 4)
    assert not fleet.apply(restarted, FleetView(6, (), base_version=5))
    assert fleet.apply(restarted, FleetView(2, (member(),)))
    assert fleet.apply(restarted, FleetView(3, (), base_version=2))


def test_an_older_incarnation_is_dropped_even_with_a_whole_view() -> None:
    fleet = mirror(member(I0))
    assert not fleet.apply(Address("monitor", "m", 2), FleetView(8, (member(I1),)))
    assert list(fleet.members) == [I0]
    assert fleet.apply(Address("monitor", "a", 1), FleetView(8, (member(I1),))), "another name has its own incarnations"


@pytest.mark.parametrize(
    ("fields", "is_reshaped"),
    [
        ({"free_slots": 3, "waiting": 2, "running": 1}, False),
        ({"ready": False}, True),
        ({"suspect": True}, True),
        ({"draining": True}, True),
        ({"capacity_slots": 99}, True),
        ({"part": GroupRole.DECODE}, True),
    ],
)
def test_only_a_change_of_shape_is_one(fields: dict[str, Any], is_reshaped: bool) -> None:
    fleet = mirror(member())
    assert fleet.apply(MONITOR, FleetView(6, (member(**fields),), base_version=5))
    assert fleet.is_reshaped is is_reshaped


def test_a_removal_is_a_change_of_shape() -> None:
    fleet = mirror(member(I0), member(I1))
    assert fleet.apply(MONITOR, FleetView(6, (), base_version=5, removed=(I1,)))
    assert fleet.is_reshaped


def test_moves_are_possible_while_a_member_drains_or_prefills() -> None:
    fleet = mirror(member(I0), member(I1))
    assert not fleet.has_moves
    fleet.apply(MONITOR, FleetView(6, (member(I0, draining=True),), base_version=5))
    assert fleet.has_moves
    fleet.apply(MONITOR, FleetView(7, (member(I1, free_slots=1),), base_version=6))
    assert fleet.has_moves, "a change of load keeps it"
    fleet.apply(MONITOR, FleetView(8, (member(I0), member(I1, part=GroupRole.PREFILL)), base_version=7))
    assert fleet.has_moves
    fleet.apply(MONITOR, FleetView(9, (), base_version=8, removed=(I1,)))
    assert not fleet.has_moves
