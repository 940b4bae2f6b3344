"""Leases: an instance without a stream for too long is in no group any more."""

import pytest

from dunlin.effects import Address, After, Gone, Joined, Send
from dunlin.messages.placement import LongPlaced
from dunlin.messages.plan import GroupOrder
from services.global_manager.stream_leases import LeaseDue, StreamLeases
from tests.services.global_manager.bench import ME, A, B, C, D, Fleet


def gone(leases: StreamLeases, instance: Address) -> LeaseDue:
    timer = leases.on_gone(instance)
    assert isinstance(timer, After)
    assert timer.delay_s == 1.0
    assert isinstance(timer.message, LeaseDue)
    return timer.message


def test_a_lease_is_over_once_its_stream_has_been_gone_for_so_long() -> None:
    leases = StreamLeases(1.0)
    due = gone(leases, A)
    assert not leases.is_over(A)
    assert leases.on_due(due)
    assert (leases.is_over(A), leases.is_over(B)) == (True, False)
    assert not leases.on_due(due)
    leases.on_joined(A)
    assert not leases.is_over(A)


def test_a_stream_that_came_back_counts_anew() -> None:
    leases = StreamLeases(1.0)
    first = gone(leases, A)
    leases.on_joined(A)
    assert not leases.on_due(first)
    second = gone(leases, A)
    assert not leases.on_due(first)
    assert leases.on_due(second)


def test_those_that_no_view_shows_are_forgotten() -> None:
    leases = StreamLeases(1.0)
    leases.on_due(gone(leases, A))
    leases.forget_unknown({A})
    assert leases.is_over(A)
    leases.forget_unknown({B})
    assert not leases.is_over(A)


# --- what the manager does ---


def lose(fleet: Fleet, instance: Address, at_s: float) -> LeaseDue:
    """Its stream ends; the views go on to show it."""
    (timer,) = fleet.give(instance, Gone("killed"), at_s)
    assert isinstance(timer, After)
    assert isinstance(timer.message, LeaseDue)
    return timer.message


def test_a_leader_that_died_frees_its_members_before_the_views_tell_of_it() -> None:
    fleet = Fleet(A, B, C, D)
    placed = fleet.placed(1, 250)
    assert fleet.groups() == {placed.group: "abc"}
    due = lose(fleet, A, 1.0)
    assert fleet.ask(1, 250, attempt=2) == [], "three of the four are its group's"
    (answer,) = fleet.heard(lambda: fleet.give(ME, due, 2.0))
    assert isinstance(answer, LongPlaced)
    assert fleet.groups()[answer.group] == "bcd"
    assert answer.leader == B


def test_a_member_that_died_leaves_its_group() -> None:
    fleet = Fleet(A, B, C)
    placed = fleet.placed(1, 250)
    due = lose(fleet, C, 1.0)
    fleet.give(ME, due, 2.0)
    assert fleet.groups()[placed.group] == "ab"


@pytest.mark.parametrize("back_s", [1.5, None])
def test_a_stream_that_comes_back_or_a_manager_that_is_cut_off_changes_nothing(back_s: float | None) -> None:
    fleet = Fleet(A, B, C)
    placed = fleet.placed(1, 250)
    due = lose(fleet, A, 1.0)
    if back_s is None:
        lose(fleet, B, 1.0)
        lose(fleet, C, 1.0)
    else:
        fleet.give(A, Joined(), back_s)
    effects = fleet.give(ME, due, 2.0)
    assert not [each for each in effects if isinstance(each, Send) and isinstance(each.message, GroupOrder)]
    assert fleet.groups() == {placed.group: "abc"}
    assert [each.message for each in effects if isinstance(each, After)] == ([due] if back_s is None else [])
