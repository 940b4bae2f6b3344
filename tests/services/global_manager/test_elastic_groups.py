"""The numbers of groups over the terms of several managers, and members that are given back and given again."""

import itertools

import pytest

from dunlin.effects import Address, Joined
from dunlin.messages.membership import Elected
from dunlin.messages.placement import WithdrawLong
from dunlin.messages.types import GroupKind
from tests.services.global_manager.bench import D1, EPOCH, ETCD, A, B, C, D, Fleet


@pytest.mark.parametrize("first", [(), (A, B)], ids=["before all", "between the instances"])
def test_a_manager_that_leads_before_it_knows_the_fleet_gives_no_number_of_a_group_that_there_is(
    first: tuple[Address, ...],
) -> None:
    """As one that is started again: the streams open one by one, and what runs goes on where it is."""
    old = Fleet(C, D)
    placed = old.placed(1, 150)
    old.view()
    new = Fleet(leads=False)
    new.give(ETCD, Elected(EPOCH + 1))
    new.members = Fleet(A, B, leads=False).members | old.members
    for one in first:
        new.give(one, Joined())
    new.view()
    for one in (A, B):
        new.give(one, Joined())
    other = new.placed(2, 150)
    for one in (C, D):
        new.give(one, Joined())
    assert new.groups() == {placed.group: "cd", other.group: "ab"}
    assert other.group > placed.group + 60, "the last manager may have given numbers that no view shows"


def test_the_next_manager_goes_on_with_the_groups_that_it_finds_and_with_higher_numbers() -> None:
    old = Fleet(A, B, C, D)
    placed = old.placed(1, 250)
    old.view()
    new = Fleet(leads=False)
    for one in (A, B, C, D):
        new.give(one, Joined())
    new.members = dict(old.members)
    new.view()
    new.give(ETCD, Elected(EPOCH + 1))
    assert new.groups() == {placed.group: "abc"}
    assert {one.epoch for one in new.orders.values()} == {EPOCH + 1}
    assert new.orders[D].group == old.orders[D].group
    new.view()
    answer = new.placed(1, 100, attempt=2)
    assert answer.leader == A, "the group that it found has 300 slots free"
    assert new.placed(2, 100, excluded=(A,)).group > placed.group + 1


def test_two_managers_that_lead_one_after_the_other_from_one_view_give_different_numbers() -> None:
    """Seed 15001013: the orders of the first were late, so the second did not see the group that it had made."""
    old = Fleet(A, B, C, D)
    old.view()
    numbers = set()
    for epoch in (EPOCH + 1, EPOCH + 2):
        new = Fleet(leads=False)
        for one in (A, B, C, D):
            new.give(one, Joined())
        new.members = dict(old.members)
        new.view()
        new.give(ETCD, Elected(epoch))
        numbers |= {new.placed(request, 150).group for request in (1, 2)}
    assert len(numbers) == 4


def test_a_manager_that_leads_before_it_sees_the_fleet_gives_higher_numbers_too() -> None:
    """A term may begin before the first view: the groups that it shows are those of the managers before all the same,
    and the last of these may have given numbers to groups that it does not show."""
    old = Fleet(A, B, C, D)
    seen = dict(old.members)
    hidden = old.placed(1, 150)
    new = Fleet(leads=False)
    for one in (A, B, C, D):
        new.give(one, Joined())
    new.give(ETCD, Elected(EPOCH + 1))
    new.members = seen
    new.view()
    assert new.placed(2, 150).group > hidden.group


@pytest.mark.parametrize("order", list(itertools.permutations(["one", "two", "view"])), ids=", ".join)
@pytest.mark.parametrize(("hidden", "seen"), [((C, D), (A, B)), ((A, B), (C, D))], ids=["first seen", "last seen"])
def test_a_group_that_no_view_showed_is_not_mixed_with_one_that_got_its_number_meanwhile(
    hidden: tuple[Address, ...], seen: tuple[Address, ...], order: tuple[str, ...]
) -> None:
    """The monitor was started again, too: its first views show new instances, and nobody's group."""
    old = Fleet(*hidden)
    before = old.placed(1, 150)
    old.view()
    new = Fleet(*seen, leads=False)
    new.give(ETCD, Elected(EPOCH + 1))
    new.view()
    made = new.placed(2, 150)
    assert made.group == before.group, "it cannot know"
    for what in order:
        if what == "view":
            new.members |= old.members
            new.view()
        else:
            new.give(hidden[what == "two"], Joined())
    new.view()
    names = "".join(one.name for one in seen)
    assert new.groups() == {made.group: names}
    assert {new.orders[one].kind for one in hidden} == {GroupKind.LOCAL}
    assert len({one.group for one in new.orders.values()}) == 3
    assert new.placed(3, 150).group > made.group


def test_an_instance_whose_group_has_a_number_given_since_takes_no_number_of_another() -> None:
    old = Fleet(A, B)
    before = old.placed(1, 150)
    old.view()
    new = Fleet(C, D, leads=False)
    new.give(ETCD, Elected(EPOCH + 1))
    new.view(c={"free_slots": 0})
    assert new.placed(2, 80).group == before.group, "it cannot know"
    order = new.orders[C]
    new.members |= old.members
    new.view()
    new.give(A, Joined())
    new.give(B, Joined())
    assert new.orders[C] == order
    assert len({one.group for one in new.orders.values()}) == 4


def test_a_leader_that_gives_a_member_back_does_not_get_it_again_for_what_it_lacked_by_an_older_order() -> None:
    """Seed 16005556: there was one instance for two that the leader lacked, which then needed none after all."""
    fleet = Fleet(A, B)
    placed = fleet.placed(1, 50)
    fleet.lacks(A, 170)
    assert fleet.groups() == {placed.group: "ab"}, "70 slots are lacking still"
    fleet.returns(A, B)
    assert fleet.groups() == {placed.group: "a"}
    assert fleet.orders[B].kind is GroupKind.LOCAL


@pytest.mark.parametrize("what", ["a wish", "a request"])
def test_of_a_member_that_one_plan_takes_back_and_gives_again_its_leader_hears_by_a_newer_order(what: str) -> None:
    """The plan changes nothing: else the leader never uses what it gave back, and the manager counts on it."""
    fleet = Fleet(A, B, plan_pace__small_fleet=1, plan_pace__per_instance_s=1.0)
    fleet.now_s = 10.0
    placed = fleet.placed(1, 50)
    fleet.now_s = 20.0
    fleet.lacks(A, 80)
    assert fleet.groups() == {placed.group: "ab"}
    version = fleet.orders[A].plan_version
    fleet.now_s = 20.5
    fleet.returns(A, B)
    if what == "a wish":
        fleet.lacks(A, 80)
    else:
        assert fleet.ask(2, 120) == []
    fleet.view(21.5)
    assert fleet.groups() == {placed.group: "ab"}
    assert fleet.orders[A].plan_version == version
    fleet.look(22.0)
    assert fleet.groups() == {placed.group: "ab"}
    assert fleet.orders[A].plan_version == version + 1
    fleet.look(24.0)
    assert fleet.orders[A].plan_version == version + 1, "it was said"


def test_what_cannot_join_its_group_is_not_counted_on_though_a_request_was_promised_its_slots() -> None:
    fleet = Fleet(A, B, C)
    placed = fleet.placed(1, 150)
    fleet.lacks(A, 50)
    assert fleet.groups() == {placed.group: "abc"}
    fleet.now_s = 10.0
    fleet.returns(A, B, cannot_join=True)
    assert fleet.groups() == {placed.group: "ac"}
    assert fleet.orders[B].kind is GroupKind.LOCAL
    fleet.view(10.5)
    assert fleet.ask(2, 100) == [], "there are 50 slots"
    assert fleet.groups() == {placed.group: "ac"}
    fleet.look(11.9)
    assert fleet.groups() == {placed.group: "ac"}
    fleet.look(12.0)
    assert list(fleet.groups().values()) == ["ac", "b"], "alone it is as good as any"


def test_groups_that_one_plan_forms_have_numbers_of_their_own() -> None:
    fleet = Fleet(A, B, C, D)
    full, empty = {"free_slots": 0}, {"free_slots": 100}
    fleet.view(a=full, b=full, c=full, d=full)
    assert fleet.ask(1, 150) == fleet.ask(2, 150) == []
    first, second = fleet.heard(lambda: fleet.view(a=empty, b=empty, c=empty, d=empty))
    assert first.group != second.group
    assert fleet.groups() == {first.group: "ab", second.group: "cd"}


def test_a_member_that_was_given_back_and_taken_makes_no_newer_order_later() -> None:
    fleet = Fleet(A, B, plan_pace__small_fleet=1, plan_pace__per_instance_s=0.1)
    fleet.now_s = 10.0
    fleet.placed(1, 50)
    fleet.now_s = 20.0
    fleet.lacks(A, 80)
    fleet.now_s = 30.0
    fleet.returns(A, B)
    assert list(fleet.groups().values()) == ["a"]
    version = fleet.orders[A].plan_version
    fleet.look(40.0)
    assert fleet.orders[A].plan_version == version


def test_what_was_given_back_is_free_once_the_request_that_needed_it_is_asked_for_anew() -> None:
    fleet = Fleet(A, B)
    placed = fleet.placed(1, 150)
    fleet.returns(A, B)
    assert fleet.groups() == {placed.group: "ab"}, "the request was promised its slots"
    again = fleet.placed(1, 150, attempt=2)
    assert fleet.groups() == {again.group: "ab"}
    assert again.group > placed.group


def test_an_idle_group_ends_while_another_has_a_request() -> None:
    fleet = Fleet(A, B, C, D, long_requests__idle_group_s=5.0)
    used, idle = fleet.placed(1, 150), fleet.placed(2, 150)
    fleet.give(D1, WithdrawLong(2, 1))
    fleet.look(2.0)
    fleet.look(6.9)
    assert fleet.groups() == {used.group: "ab", idle.group: "cd"}
    fleet.look(7.0)
    assert fleet.groups() == {used.group: "ab"}
