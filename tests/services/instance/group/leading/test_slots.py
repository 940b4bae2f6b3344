"""How a leader waits for members and slots: for how long, how often it asks, and who goes back when nothing moves."""

from dunlin.messages.dispatch import Refusal, Returned
from dunlin.messages.group import GroupStepDone, OpenGuest
from dunlin.messages.plan import ReturnMembers
from tests.services.instance.bench import ME
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, heard, member_address
from tests.services.instance.group.leading.scripted_member import GROUP

# --- what is taken ---


def test_what_fills_all_slots_or_positions_is_taken_and_the_shortest_member_counts() -> None:
    group = ScriptedGroup(20, 20)
    assert group.refusal(1, tokens=40, max_tokens=1) is None
    assert group.refusal(2, tokens=10, max_tokens=990) is None
    group.at(1).max_positions = 500
    group.at(1).say_ready()
    group.run(0.01)
    assert group.refusal(3, tokens=10, max_tokens=490) is None
    assert group.refusal(4, tokens=10, max_tokens=491) is Refusal.TOO_LONG


def test_an_answer_that_nobody_awaits_is_stale() -> None:
    group = ScriptedGroup(20, 20)
    stale = group.leader.stale_total
    group.do(group.leader.on_said(group.now_s, member_address(1), GroupStepDone(GROUP, 99, refusal="no")))
    assert group.leader.stale_total == stale + 1


def test_slots_that_a_lost_member_was_asked_for_are_free_when_it_is_back() -> None:
    group = ScriptedGroup(60, 60, groups__policy="widest")
    group.place(1, tokens=40, max_tokens=4)
    group.run(0.0005)
    member = group.at(1)
    group.lose(1)
    group.run(1.0)
    member.is_silent = False
    member.heard.clear()
    group.order(*group.members)
    group.run(0.1)
    attempt = group.place(2, tokens=110, max_tokens=4)
    group.run(1.0)
    assert attempt.tokens == attempt.expected


# --- how long it waits ---


def test_members_of_a_newer_order_are_waited_for_as_long_as_those_of_the_first() -> None:
    group = ScriptedGroup(60, 60, 60, start=False, groups__policy="widest")
    group.members[member_address(2)].is_silent = True
    group.order(ME, member_address(1))
    group.run(0.2)
    group.order(*group.members)
    group.place(tokens=30, max_tokens=4)
    group.run(0.2)
    assert group.steps == []
    group.run(0.1)
    assert group.steps != []


def asked_in_vain(patience_s: float = 5.0) -> ScriptedGroup:
    """A member has 5 slots, 20 are needed; it does not say that others take them."""
    group = ScriptedGroup(40, groups__patience_s=patience_s)
    group.at(0).taken = 35
    group.place(tokens=20, max_tokens=4)
    return group


def test_a_member_that_refuses_is_asked_less_and_less_often() -> None:
    """After 0.25 s, 0.5 s more, and so on up to 2 s."""
    group = asked_in_vain(60.0)
    group.run(9.2)
    assert len(heard(group, 0, OpenGuest)) == 1 + 8
    group.run(8.0)
    assert len(heard(group, 0, OpenGuest)) == 1 + 8 + 4


def test_who_is_asked_for_slots_hears_who_refused_them() -> None:
    group = asked_in_vain()
    group.run(1.0)
    first, *_, last = heard(group, 0, OpenGuest)
    assert first.why.rejected == ()
    assert [each.reason for each in last.why.rejected] == ["23 slots asked for, 5 were free"]


def test_a_member_whose_slots_are_needed_soon_is_not_given_back() -> None:
    group = ScriptedGroup(30, 30, groups__ahead_tokens=20, groups__return_after_s=0.2)
    attempt = group.place(tokens=10, max_tokens=40)
    group.run(0.55)
    assert attempt.tokens == attempt.expected
    assert not group.wished(ReturnMembers)


# --- who goes back ---


def test_of_two_that_wait_the_first_goes_back() -> None:
    group = ScriptedGroup(40, 40)
    group.lose(1)
    for request in (1, 2):
        group.place(request, tokens=60, max_tokens=4)
    group.run(5.1)
    assert [each.request for each in group.said(Returned)] == [1]


def test_none_goes_back_while_a_step_runs() -> None:
    group = ScriptedGroup(60, 60, groups__policy="widest", groups__patience_s=0.5, groups__late_s=10.0)
    group.place(tokens=40, max_tokens=60)
    group.run(0.2)
    group.at(1).stop()
    group.run(3.0)
    assert not group.said(Returned)


def test_tokens_are_a_move_as_slots_are() -> None:
    """Its last slot is used after 0.9 s; the last word of a member about slots came long before that."""
    group = ScriptedGroup(100, groups__patience_s=0.5, groups__ahead_tokens=200)
    attempt = group.place(tokens=10, max_tokens=200)
    group.run(1.3)
    assert len(attempt.tokens) > 80
    assert not group.said(Returned)
    group.run(0.4)
    assert len(group.said(Returned)) == 1
