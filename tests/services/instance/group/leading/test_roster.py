"""What a leader asks its members about each other's engines, which answers count, and for whom it waits."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Send
from dunlin.messages.group import JoinGroup, MeetMembers, MemberReady, MembersMet
from dunlin.messages.plan import AskMembers, GroupOrder, ReturnMembers
from dunlin.messages.types import GroupKind, GroupRole, i32
from services.instance.group.leading.roster import GroupRoster
from tests.services.instance.bench import ME
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, member_address
from tests.services.instance.group.leading.scripted_member import ScriptedMember

LEAD, OTHER = Address("instance", "a", 1), Address("instance", "b", 2)
GROUP = 7


def ready(one: Address, agent: bytes) -> MemberReady:
    return MemberReady(GROUP, Address("engine", one.name), agent, 0, 100, 100, 1000, "w", "fp32", ())


def question(effects: list[Effect], to: Address) -> int:
    """The newest that the member is asked."""
    asked = [one.message for one in effects if isinstance(one, Send) and one.to == to]
    return [one for one in asked if isinstance(one, MeetMembers)][-1].question


def test_a_member_that_was_lost_when_it_was_asked_takes_part_once_it_has_answered_the_next_question() -> None:
    """Seed 15004434: its engine died just after it was ready, so it answered nothing until it was ready anew."""
    roster = GroupRoster(LEAD, {OTHER}, 1.0, lambda member, reason: [])
    roster.follow(GroupOrder(1, 1, GROUP, GroupKind.ELASTIC, GroupRole.LEADER, (LEAD, OTHER)))
    roster.on_ready(LEAD, ready(LEAD, b"a1"))
    first = roster.on_ready(OTHER, ready(OTHER, b"b1"))
    roster.on_met(LEAD, MembersMet(GROUP, i32([1]), question=question(first, LEAD)))
    roster.on_lost(OTHER, "its engine is gone")
    assert roster.on_met(OTHER, MembersMet(GROUP, i32([0]), question=question(first, OTHER))) == []
    again = roster.on_ready(OTHER, ready(OTHER, b"b2"))
    roster.on_met(LEAD, MembersMet(GROUP, i32([1]), question=question(again, LEAD)))
    roster.on_met(OTHER, MembersMet(GROUP, i32([0]), question=question(first, OTHER)))
    assert roster.placeable() == [0], "what it said before is of another engine"
    roster.on_met(OTHER, MembersMet(GROUP, i32([0]), question=question(again, OTHER)))
    assert roster.placeable() == [0, 1]


def both_ready(**other: Any) -> GroupRoster:
    """Two members whose engines have met; `other` are fields of the second's."""
    roster = GroupRoster(LEAD, {OTHER}, 1.0, lambda member, reason: [])
    roster.follow(GroupOrder(1, 1, GROUP, GroupKind.ELASTIC, GroupRole.LEADER, (LEAD, OTHER)))
    roster.on_ready(LEAD, ready(LEAD, b"a1"))
    asked = roster.on_ready(OTHER, replace(ready(OTHER, b"b1"), **other))
    roster.on_met(LEAD, MembersMet(GROUP, i32([1]), question=question(asked, LEAD)))
    roster.on_met(OTHER, MembersMet(GROUP, i32([0]), question=question(asked, OTHER)))
    return roster


@pytest.mark.parametrize("other", [{"weights_digest": "v"}, {"kv_dtype": "bf16"}, {"adapters": ("aa",)}], ids=str)
def test_members_of_other_weights_types_or_adapters_do_not_compute_together(other: dict[str, Any]) -> None:
    assert both_ready().placeable() == [0, 1]
    assert both_ready(**other).placeable() == [0]


def test_what_a_silent_member_says_of_itself_does_not_make_it_take_part() -> None:
    roster = both_ready()
    roster.on_silent(1)
    assert roster.on_ready(OTHER, ready(OTHER, b"b1")) == []
    assert roster.on_answer(0) == []
    assert roster.placeable() == [0]
    assert roster.on_answer(1) == [Send(OTHER, JoinGroup(1, 1, GROUP, 1))]
    assert roster.on_ready(OTHER, ready(OTHER, b"b1")) != []


def test_a_member_whose_stream_ended_is_dialed_again() -> None:
    group = ScriptedGroup(30, 30)
    group.lose(1)
    group.run(0.3)
    assert group.dials == [member_address(1)] * 2


@pytest.mark.parametrize("what", ["cannot be dialed", "cannot be met"])
def test_a_member_that_never_comes_does_not_keep_its_leader_from_asking_for_another(what: str) -> None:
    group = ScriptedGroup(30, 30, start=False)
    member = group.members[member_address(1)]
    member.is_silent, member.unreachable = what == "cannot be dialed", {0}
    group.order(*group.members)
    group.run(0.01)
    attempt = group.place(tokens=50, max_tokens=4)
    group.run(0.7)
    assert not group.wished(AskMembers), "it may be on its way, and is asked a third time after 0.75 s"
    group.run(0.1)
    assert [each.slots for each in group.wished(AskMembers)] == [23]
    other = member_address(2)
    group.members[other] = ScriptedMember(group, other, 30)
    group.order(*group.members)
    group.run(1.0)
    assert attempt.tokens == attempt.expected


def test_a_member_that_cannot_be_met_is_not_on_its_way_though_it_speaks_of_its_slots() -> None:
    group = ScriptedGroup(30, 30, start=False)
    member = group.members[member_address(1)]
    member.unreachable = {0}
    group.order(*group.members)
    group.run(0.01)
    group.place(tokens=50, max_tokens=4)
    for _ in range(8):
        group.run(0.1)
        member.say_ready()
    assert len(group.wished(AskMembers)) == 1


@pytest.mark.parametrize("is_needed", [False, True], ids=["idle", "while a request waits for slots"])
@pytest.mark.parametrize("who", ["the leader", "the member", "another member"])
def test_a_member_that_is_ready_and_cannot_be_met_is_given_back_once_it_was_tried_for_long(
    who: str, is_needed: bool
) -> None:
    """Only one side does not reach the other: by its answers alone the other may seem to be on its way for ever."""
    group = ScriptedGroup(30, 30, 30, start=False, groups__patience_s=60.0, groups__return_after_s=30.0)
    lead, other, member = group.members.values()
    blind, hidden = {"the leader": (lead, 2), "the member": (member, 0), "another member": (other, 2)}[who]
    blind.unreachable = {hidden}
    group.order(*group.members)
    if is_needed:
        group.place(tokens=80, max_tokens=4)
    group.run(1.0)
    group.order(*group.members)  # for another reason: it has to wait no longer for that
    group.run(7.9)
    assert not group.wished(ReturnMembers)
    group.run(0.2)
    (returned,) = group.wished(ReturnMembers)
    assert (returned.members, returned.cannot_join) == ((member.address,), True)
    group.run(20.0)
    assert len(group.wished(ReturnMembers)) == 1, "it is said once"
    group.order(*group.members)
    group.run(9.1)
    assert len(group.wished(ReturnMembers)) == 2, "the manager gave it again"


def test_a_member_that_joins_late_or_has_left_the_group_is_not_given_back() -> None:
    group = ScriptedGroup(30, 30, 30, start=False, groups__return_after_s=30.0)
    late, gone = group.members[member_address(1)], group.members[member_address(2)]
    late.unreachable = gone.unreachable = {0}
    group.order(*group.members)
    group.run(5.0)
    late.unreachable = set()
    group.order(ME, late.address)
    group.run(20.0)
    assert not group.wished(ReturnMembers)
