"""The numbers of groups over the terms of several managers."""

import pytest

from dunlin.effects import Address, Joined
from dunlin.messages.membership import Elected
from tests.services.global_manager.test_long_requests import EPOCH, ETCD, A, B, C, D, Fleet


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
