"""What becomes of groups when instances or dispatchers are lost, or refuse: fewer members, others, or none."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Gone
from dunlin.messages.placement import LongPlaced
from dunlin.messages.plan import GroupOrderRefused
from dunlin.messages.types import RejectedOption
from tests.services.global_manager.bench import ALONE, D1, D2, A, B, C, D, Fleet


def test_a_member_that_is_lost_leaves_the_group_and_the_others_get_an_order_without_it() -> None:
    fleet = Fleet(A, B, C)
    placed = fleet.placed(1, 250)
    version = fleet.orders[A].plan_version
    fleet.view(1.0, c={})
    assert fleet.groups() == {placed.group: "ab"}
    assert fleet.orders[A].plan_version == fleet.orders[B].plan_version == version + 1
    fleet.view(2.0, b={"suspect": True})
    assert fleet.groups() == {placed.group: "a"}
    assert fleet.orders[B].kind is ALONE
    assert fleet.core.report().long_placed == 1, "the leader says what becomes of its requests"


@pytest.mark.parametrize("loss", [{}, {"suspect": True}, {"ready": False}])
def test_a_group_ends_with_its_leader(loss: dict[str, Any]) -> None:
    fleet = Fleet(A, B, C)
    placed = fleet.placed(1, 250)
    fleet.view(1.0, a=loss)
    assert fleet.groups() == {}
    assert {fleet.orders[one].kind for one in (B, C)} == {ALONE}
    assert fleet.core.report().long_placed == 0
    fleet.view(2.0, c={"suspect": False})
    assert fleet.placed(1, 150, attempt=2).group > placed.group, "no number is used twice"


def test_a_group_that_loses_a_member_before_it_is_formed_is_made_of_others() -> None:
    fleet = Fleet(A, B, C)
    fleet.silent = {B}
    assert fleet.ask(1, 150) == []
    first = fleet.groups()
    assert list(first.values()) == ["ab"]
    (answer,) = fleet.heard(lambda: fleet.view(1.0, b={"suspect": True}))
    assert isinstance(answer, LongPlaced)
    assert answer.leader == A
    assert fleet.groups() == {answer.group: "ac"}


def test_a_member_that_refuses_is_left_out() -> None:
    fleet = Fleet(A, B, C)
    fleet.silent = {B}
    assert fleet.ask(1, 150) == []
    order = fleet.orders[B]
    refusal = GroupOrderRefused(order.epoch, order.plan_version, "no engine that can")
    (answer,) = fleet.heard(lambda: fleet.give(B, refusal, 1.0))
    assert fleet.groups() == {answer.group: "ac"}
    assert fleet.orders[B].kind is ALONE


def test_a_group_goes_on_with_a_request_that_the_manager_does_not_know() -> None:
    """Its dispatcher is gone, or another manager placed it: what the leader has set aside for it shows in the views."""
    fleet = Fleet(A, B, C)
    placed = fleet.placed(1, 250)
    fleet.give(D1, Gone("killed"))
    fleet.view(1.0, a={"guest_slots": 80})
    fleet.returns(A, B, C)
    assert fleet.groups() == {placed.group: "a"}
    assert {fleet.orders[one].kind for one in (B, C)} == {ALONE}
    fleet.view(2.0, a={"guest_slots": 0})
    fleet.returns(A)
    assert fleet.groups() == {}


def test_a_silent_manager_stream_changes_nothing() -> None:
    fleet = Fleet(A, B)
    placed = fleet.placed(1, 150)
    fleet.give(B, Gone("reset"), 1.0)
    fleet.view(1.5)
    assert fleet.groups() == {placed.group: "ab"}
    assert fleet.ask(2, 40) == [], "nothing new is placed with an instance that cannot be ordered"


def test_a_group_keeps_its_request_if_the_members_that_are_left_just_hold_it() -> None:
    fleet = Fleet(A, B, C, slots=150)
    fleet.view(a={"free_slots": 100}, b={"free_slots": 100}, c={"free_slots": 100})
    fleet.silent = {A}
    assert fleet.ask(1, 250) == []
    ((number, members),) = fleet.groups().items()
    assert members == "abc"
    fleet.view(1.0, a={"free_slots": 150}, c={})
    assert fleet.groups() == {number: "ab"}
    (answer,) = fleet.heard(lambda: fleet.follow(A))
    assert (answer.request, answer.group) == (1, number)


def test_of_the_requests_of_a_group_that_lost_a_member_the_oldest_that_fit_stay() -> None:
    fleet = Fleet(A, B)
    fleet.silent = {A}
    assert fleet.ask(1, 90) == []
    ((number, _),) = fleet.groups().items()
    assert fleet.ask(2, 110) == []
    assert fleet.groups() == {number: "ab"}
    assert fleet.heard(lambda: fleet.view(1.0, b={"suspect": True})) == []
    assert fleet.groups() == {number: "a"}
    (answer,) = fleet.heard(lambda: fleet.follow(A))
    assert (answer.request, answer.group) == (1, number)
    assert fleet.core.report().long_waiting == 1


def test_a_request_whose_group_lost_a_member_leaves_no_group_behind() -> None:
    fleet = Fleet(A, B)
    fleet.silent = {A}
    assert fleet.ask(1, 150) == []
    assert list(fleet.groups().values()) == ["ab"]
    fleet.view(1.0, b={"suspect": True})
    assert fleet.groups() == {}
    assert fleet.orders[A].kind is ALONE


def test_a_dispatcher_that_is_gone_takes_only_its_own_requests_with_it() -> None:
    fleet = Fleet(A, B)
    fleet.view(a={"free_slots": 0}, b={"free_slots": 0})
    assert fleet.ask(1, 150, by=D1) == fleet.ask(1, 150, by=D2) == []
    fleet.give(D1, Gone("killed"))
    fleet.told.clear()
    fleet.view(a={"free_slots": 100}, b={"free_slots": 100})
    assert [(to, type(message)) for to, message in fleet.told] == [(D2, LongPlaced)]


def two_groups() -> tuple[Fleet, int, int]:
    """a leads b in a group of 150 slots, c leads d in one of 130."""
    fleet = Fleet(A, B, C, D)
    first, second = fleet.placed(1, 150), fleet.placed(2, 130)
    taken = {"free_slots": 35, "guest_slots": 65}
    fleet.view(1.0, a={"free_slots": 25, "guest_slots": 75}, b={"free_slots": 25, "guest_slots": 75}, c=taken, d=taken)
    return fleet, first.group, second.group


def two_groups_without_a_member() -> tuple[Fleet, int, int]:
    """`two_groups`, and b is lost."""
    fleet, first, second = two_groups()
    fleet.view(2.0, b={})
    assert fleet.groups() == {first: "a", second: "cd"}
    fleet.lacks(A, 50)
    return fleet, first, second


def test_a_group_that_is_too_small_for_long_ends_where_another_can_hold_its_request_with_its_instance() -> None:
    fleet, first, second = two_groups_without_a_member()
    fleet.view(2.9)
    assert fleet.groups() == {first: "a", second: "cd"}
    fleet.view(3.1)
    assert fleet.groups() == {second: "cd"}
    assert fleet.orders[A].kind is ALONE
    why = fleet.orders[A].why
    assert why is not None
    assert why.rejected[0] == RejectedOption(
        f"group {first}", "too small for its requests, which another group can hold"
    )
    fleet.view(3.2, a={"free_slots": 100, "guest_slots": 0})
    again = fleet.placed(1, 150, attempt=2, generated=4)
    assert (again.leader, fleet.groups()) == (C, {second: "cad"})


def test_a_group_that_is_too_small_without_a_silent_member_ends_at_once() -> None:
    fleet, first, second = two_groups()
    fleet.lacks(A, 75)
    assert fleet.groups() == {first: "ab", second: "cd"}
    fleet.now_s = 2.0
    fleet.returns(A, B, cannot_join=True)
    assert fleet.groups() == {second: "cd"}
    fleet.view(2.1, a={"free_slots": 100, "guest_slots": 0}, b={"free_slots": 100, "guest_slots": 0})
    again = fleet.placed(1, 150, attempt=2, generated=4)
    assert (again.leader, fleet.groups()) == (C, {second: "cad"}), "b would be silent there, too"


def test_a_group_whose_wish_came_late_is_not_given_its_silent_member_again_before_it_ends() -> None:
    fleet, first, second = two_groups()
    fleet.now_s = 2.0
    fleet.returns(A, B, cannot_join=True)
    assert fleet.groups() == {first: "a", second: "cd"}
    fleet.view(2.1)
    fleet.lacks(A, 75)
    fleet.view(3.0)
    assert fleet.groups() == {first: "a", second: "cd"}
    fleet.view(3.2)
    assert fleet.groups() == {second: "cd"}


def test_a_leader_whose_own_engine_is_silent_gives_itself_back() -> None:
    fleet, _, second = two_groups()
    fleet.now_s = 2.0
    fleet.returns(A, A, cannot_join=True)
    assert fleet.groups() == {second: "cd"}
    fleet.view(2.1, b={"free_slots": 100, "guest_slots": 0})
    again = fleet.placed(1, 150, attempt=2, generated=4)
    assert (again.leader, fleet.groups()) == (C, {second: "cbd"})


def test_a_group_that_gets_a_member_in_time_goes_on() -> None:
    fleet, first, second = two_groups_without_a_member()
    fleet.members[B] = replace(fleet.members[A], address=B, kind=ALONE, group=0, free_slots=100, guest_slots=0)
    fleet.view(2.5)
    assert fleet.groups() == {first: "ab", second: "cd"}
    fleet.view(9.0)
    assert fleet.groups() == {first: "ab", second: "cd"}


def test_a_group_that_lacks_nothing_for_a_while_has_all_the_time_again() -> None:
    fleet, first, second = two_groups_without_a_member()
    fleet.view(2.5)
    fleet.lacks(A, 0)
    fleet.view(2.6)
    fleet.lacks(A, 50)
    fleet.view(3.5)
    assert fleet.groups() == {first: "a", second: "cd"}
    fleet.view(3.7)
    assert fleet.groups() == {second: "cd"}


@pytest.mark.parametrize("reason", ["no room", "another node", "no wish", "it holds it"])
def test_a_group_is_not_ended_for_nothing(reason: str) -> None:
    fleet, first, second = two_groups_without_a_member()
    if reason == "no room":
        fleet.view(2.5, c={"free_slots": 0, "guest_slots": 65})
    elif reason == "another node":
        fleet.view(2.5, c={"node": "m"}, d={"node": "m"})
    elif reason == "no wish":
        fleet.lacks(A, 0)
    else:
        fleet.view(2.5, a={"capacity_slots": 150})
    fleet.view(9.0)
    assert fleet.groups() == {first: "a", second: "cd"}
