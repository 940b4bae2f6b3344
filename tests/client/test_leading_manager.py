"""The leading manager: the one of the newest term, if it has an endpoint."""

import pytest

from dunlin.client.errors import Unavailable
from dunlin.client.leading_manager import leader_of
from dunlin.effects import Address
from dunlin.messages.fleet import FleetStatus, ManagerReport, MemberStatus


def manager(name: str, epoch: int, endpoint: str = "") -> MemberStatus:
    return MemberStatus(Address("global_manager", name, 1), endpoint=endpoint, manager=ManagerReport(epoch))


def status(*members: MemberStatus) -> FleetStatus:
    return FleetStatus(1, members)


def test_the_manager_of_the_newest_term_leads() -> None:
    members = manager("a", 2, "a:1"), manager("b", 3, "b:1"), manager("c", 1, "c:1")
    assert leader_of(status(*members, MemberStatus(Address("monitor", "m", 1), endpoint="m:1")), "d:1") == "b:1"
    assert leader_of(status(manager("a", 2, "a:1"), manager("b", 3)), "d:1") == "a:1"


@pytest.mark.parametrize("members", [(), (manager("a", 0, "a:1"),), (manager("a", 2),)])
def test_without_a_leader_the_error_names_the_dispatcher(members: tuple[MemberStatus, ...]) -> None:
    with pytest.raises(Unavailable, match="d:1: no global manager leads"):
        leader_of(status(*members), "d:1")
