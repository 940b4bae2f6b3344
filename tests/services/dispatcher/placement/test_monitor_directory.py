"""The directory of monitors: the newest registered one answers."""

from dunlin.effects import Address
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from services.dispatcher.placement.monitor_directory import MonitorDirectory
from tests.services.dispatcher.factories import A


def test_the_newest_registered_monitor_answers() -> None:
    def monitor(incarnation: int) -> Member:
        return Member(Address("monitor", "m", incarnation), f"host:{incarnation}", "n", 1)

    directory = MonitorDirectory()
    assert directory.monitor_endpoint == ""
    directory.apply(MembersReset((Member(A, "host:1", "n", 1), monitor(5))))
    assert directory.monitor_endpoint == "host:5"
    directory.apply(MemberUp(monitor(9)))
    directory.apply(MemberUp(monitor(7)))
    assert directory.monitor_endpoint == "host:9"
    directory.apply(MemberDown(monitor(9).address))
    directory.apply(MemberDown(A))
    assert directory.monitor_endpoint == "host:7"
    directory.apply(MembersReset(()))
    assert directory.monitor_endpoint == ""
