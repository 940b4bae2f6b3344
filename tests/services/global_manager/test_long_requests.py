"""Long requests at the manager: who gets which group and when, what is promised, what each loss does. Exact times."""

from functools import partial

import pytest

from dunlin.effects import Gone, Joined
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.placement import Leads, LongRefusal, WithdrawLong
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.messages.types import Figure, RequestClass
from dunlin.policies.loongserve.inputs import GroupTimes, PrefillPrices
from tests.services.global_manager.bench import ALONE, D1, D2, EPOCH, ETCD, A, B, C, D, Fleet


def test_a_request_is_placed_once_all_members_of_its_group_follow_their_orders() -> None:
    fleet = Fleet(A, B, C, D)
    fleet.silent = {A, B, C}
    assert fleet.ask(1, 250) == []
    assert fleet.groups() == {5: "abc"}
    assert len({fleet.orders[one].plan_version for one in (A, B, C)}) == 1
    assert fleet.orders[D].kind is ALONE
    assert fleet.heard(lambda: fleet.follow(A)) == fleet.heard(lambda: fleet.follow(B)) == []
    (answer,) = fleet.heard(lambda: fleet.follow(C))
    assert (answer.request, answer.attempt, answer.leader, answer.group) == (1, 1, A, 5)
    assert answer.why.chosen == "form a group of a and b and c"
    report = fleet.core.report()
    assert (report.long_waiting, report.long_placed, report.elastic_groups) == (0, 1, 1)
    assert report.long_placed_total == 1


def test_a_request_keeps_its_group_while_orders_are_under_way_and_others_come() -> None:
    fleet = Fleet(A, B, C, D)
    fleet.silent = {A, B, C}
    assert fleet.ask(1, 250) == []
    versions = {one: fleet.orders[one].plan_version for one in (A, B, C)}
    other = fleet.placed(2, 80)
    assert fleet.groups() == {5: "abc", other.group: "d"}
    assert {one: fleet.orders[one].plan_version for one in (A, B, C)} == versions
    fleet.follow(A)
    fleet.follow(B)
    (answer,) = fleet.heard(lambda: fleet.follow(C))
    assert (answer.request, answer.group) == (1, 5)


def test_each_dispatcher_hears_who_leads_when_it_joins_and_on_every_change() -> None:
    fleet = Fleet(A, leads=False)
    assert [message for to, message in fleet.told if to == D1] == [Leads(0)]
    assert fleet.heard(lambda: fleet.give(ETCD, Elected(EPOCH))) == [Leads(EPOCH)] * 2
    assert fleet.heard(lambda: fleet.give(D2, Joined())) == [Leads(EPOCH)]
    assert fleet.heard(lambda: fleet.give(ETCD, Deposed(EPOCH))) == [Leads(0)] * 2
    (refused,) = fleet.ask(1, 150)
    assert (refused.reason, refused.retry_after_s) == (LongRefusal.NOT_LEADER, 1.0)


def test_what_was_promised_is_not_promised_again_before_a_view_shows_it() -> None:
    fleet = Fleet(A, B)
    assert fleet.placed(1, 120).group == fleet.placed(2, 60, by=D2).group, "80 of the group's 200 were left"
    assert fleet.ask(3, 30) == []
    fleet = Fleet(A, B)
    fleet.placed(1, 120)
    fleet.view(a={"free_slots": 40, "guest_slots": 60}, b={"free_slots": 40, "guest_slots": 60})
    assert fleet.ask(2, 81) == []
    assert fleet.ask(3, 80) == []
    (answer,) = fleet.heard(lambda: fleet.give(D1, WithdrawLong(2, 1)))
    assert (answer.request, answer.group) == (3, 3), "80 are left, and the one before it in the queue is gone"


def test_requests_wait_in_order_of_arrival_interactive_ones_first() -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 180)
    assert fleet.ask(2, 150, request_class=RequestClass.BATCH) == []
    assert fleet.ask(3, 190) == []
    assert fleet.ask(4, 10) == [], "a younger one that would fit waits its turn"
    answers = fleet.heard(lambda: fleet.give(D1, WithdrawLong(1, 1)))
    assert [answer.request for answer in answers] == [3, 4]
    assert [answer.request for answer in fleet.heard(lambda: fleet.give(D1, WithdrawLong(3, 1)))] == [2]


def test_one_that_needs_every_slot_keeps_those_behind_it_waiting() -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 50)
    assert fleet.ask(2, 200) == []
    assert fleet.ask(3, 40) == []
    answers = fleet.heard(lambda: fleet.give(D1, WithdrawLong(1, 1)))
    assert [answer.request for answer in answers] == [2]


def test_a_batch_request_that_rose_keeps_its_place_among_the_interactive_ones() -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 180)
    assert fleet.ask(2, 190, request_class=RequestClass.BATCH) == []
    assert fleet.ask(3, 190) == []
    assert fleet.ask(2, 190) == [], "the same attempt, as an interactive one"
    assert [answer.request for answer in fleet.heard(lambda: fleet.give(D1, WithdrawLong(1, 1)))] == [2]


def test_a_request_that_is_asked_for_anew_goes_before_younger_ones() -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 190)
    assert fleet.ask(2, 180) == []
    fleet.view(a={"free_slots": 10}, b={"free_slots": 10})
    assert fleet.ask(1, 190, attempt=2) == []
    answers = fleet.heard(lambda: fleet.view(a={"free_slots": 100}, b={"free_slots": 100}))
    assert [(answer.request, answer.attempt) for answer in answers] == [(1, 2)]


def test_a_client_in_mid_stream_goes_before_requests_that_have_not_begun() -> None:
    fleet = Fleet(A, B, C)
    first = fleet.placed(1, 190)
    fleet.view(a={"free_slots": 0, "guest_slots": 100}, b={"free_slots": 10, "guest_slots": 90})
    second = fleet.placed(2, 100)
    assert fleet.ask(3, 50) == []
    answer = fleet.placed(4, 100, attempt=3, by=D2, generated=7)
    assert answer.group in (first.group, second.group), "the room of one that was promised it and has not begun"
    assert fleet.core.report().long_waiting == 1


def test_an_attempt_that_is_asked_for_again_gets_the_same_answer_and_a_newer_one_a_new_one() -> None:
    fleet = Fleet(A, B)
    first = fleet.placed(1, 150)
    assert fleet.ask(1, 150) == [first]
    again = fleet.placed(1, 160, attempt=2)
    assert (again.attempt, again.group) == (2, first.group)
    assert fleet.ask(1, 150) == [again], "of an older attempt nothing is known but that there is a newer"
    assert fleet.core.report().long_placed == 1


@pytest.mark.parametrize("how", ["withdrawn", "gone", "deposed"])
def test_who_needs_no_group_any_more_is_forgotten(how: str) -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 200)
    assert fleet.ask(2, 200) == []
    messages = {
        "withdrawn": (D1, WithdrawLong(2, 1)),
        "gone": (D1, Gone("reset")),
        "deposed": (ETCD, Deposed(EPOCH)),
    }
    assert [one for one in fleet.heard(lambda: fleet.give(*messages[how])) if not isinstance(one, Leads)] == []
    assert fleet.core.report().long_waiting == 0
    if how == "withdrawn":
        fleet.give(D1, WithdrawLong(1, 1))
        assert fleet.core.report().long_placed == 0
    if how == "gone":
        assert fleet.placed(7, 200, by=D2).leader == A, "what was promised to it is free again"


def test_a_withdrawal_of_an_older_attempt_or_of_an_unknown_request_changes_nothing() -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 150)
    fleet.placed(1, 150, attempt=2)
    fleet.give(D1, WithdrawLong(1, 1))
    fleet.give(D1, WithdrawLong(7, 1))
    assert fleet.core.report().long_placed == 1
    fleet.give(D1, WithdrawLong(1, 2))
    assert fleet.core.report().long_placed == 0


def test_a_full_queue_and_a_long_wait_are_refused_with_when_to_ask_again() -> None:
    fleet = Fleet(A, B, long_requests__max_waiting=1, long_requests__max_wait_s=3.0)
    fleet.now_s = 10.0
    fleet.placed(1, 200)
    assert fleet.ask(2, 150) == []
    (full,) = fleet.ask(3, 150)
    assert (full.reason, full.retry_after_s) == (LongRefusal.QUEUE_FULL, 1.0)
    assert fleet.heard(lambda: fleet.look(12.9)) == []
    (late,) = fleet.heard(lambda: fleet.look(13.0))
    assert (late.request, late.reason, late.retry_after_s, late.limit_tokens) == (2, LongRefusal.NO_ROOM, 1.0, 200)
    assert late.why is not None
    assert Figure("group_waited_s", 3.0) in late.why.figures
    assert fleet.core.report().long_refused_total == 2
    assert fleet.ask(2, 150) == [], "it may be asked for again"


def test_those_that_came_first_to_their_dispatchers_are_placed_first_however_often_they_asked() -> None:
    fleet = Fleet(A, B)
    fleet.placed(1, 200)
    fleet.view(10.0)
    for request, queued_s in ((2, 3.0), (3, 8.0), (4, 8.0), (5, 20.0)):
        assert fleet.ask(request, 200, queued_s=queued_s) == []
    assert fleet.ask(2, 200, attempt=2, queued_s=0.0) == []
    for done, following in ((1, 5), (5, 3), (3, 4), (4, 2)):
        placed = fleet.heard(partial(fleet.give, D1, WithdrawLong(done, 2)))
        assert [one.request for one in placed] == [following]


def test_too_long_is_what_no_group_could_have_held_lately() -> None:
    fleet = Fleet(A, B, long_requests__remembered_s=60.0)
    assert fleet.ask(1, 250) == [], "the manager does not know yet what the fleet was before it"
    (refused,) = fleet.heard(lambda: fleet.look(60.0))
    assert (refused.reason, refused.retry_after_s, refused.limit_tokens) == (LongRefusal.TOO_LONG, 0.0, 200)
    (at_once,) = fleet.ask(2, 201)
    assert (at_once.reason, at_once.limit_tokens) == (LongRefusal.TOO_LONG, 200)
    fleet.view(100.0, b={})
    assert fleet.ask(3, 150) == [], "an instance that restarts makes no request too long"
    fleet.view(170.0)
    (after,) = fleet.ask(4, 150)
    assert (after.reason, after.limit_tokens) == (LongRefusal.TOO_LONG, 100)


def test_one_that_could_never_fit_keeps_nobody_waiting() -> None:
    fleet = Fleet(A, B)
    assert fleet.ask(1, 500) == []
    assert fleet.placed(2, 150).leader == A


def test_a_drained_instance_holds_nothing_and_keeps_nobody_waiting() -> None:
    fleet = Fleet(A, B, C)
    fleet.view(1.0, c={"draining": True})
    assert fleet.ask(1, 250) == []
    assert fleet.placed(2, 150).leader == A
    fleet.look(10.0)
    fleet.view(70.0)
    (refused,) = fleet.ask(3, 250)
    assert (refused.reason, refused.limit_tokens) == (LongRefusal.TOO_LONG, 200)


def test_one_that_needs_a_suspected_instance_keeps_nobody_waiting() -> None:
    fleet = Fleet(A, B, C)
    fleet.view(1.0, c={"suspect": True})
    assert fleet.ask(1, 250) == []
    assert fleet.placed(2, 150).leader == A


def test_a_manager_whose_policy_forms_no_groups_refuses() -> None:
    fleet = Fleet(A, B, groups__policy="local_groups")
    fleet.view(1.0, b={"capacity_slots": 60})
    fleet.look(10.0)
    fleet.view(70.0)
    (refused,) = fleet.ask(1, 150)
    assert (refused.reason, refused.limit_tokens) == (LongRefusal.TOO_LONG, 100)


def test_an_instance_whose_slots_are_all_waited_for_adds_none() -> None:
    fleet = Fleet(A, B)
    fleet.view(a={"free_slots": 50, "waiting_tokens": 70})
    assert fleet.ask(1, 101) == []
    (placed,) = fleet.heard(lambda: fleet.view(a={"free_slots": 71}))
    assert placed.leader == B


class TestLeaders:
    def test_members_that_are_given_back_are_free_and_the_last_ends_the_group(self) -> None:
        fleet = Fleet(A, B, C)
        placed = fleet.placed(1, 250)
        fleet.view(a={"free_slots": 0, "guest_slots": 100}, b={"free_slots": 0, "guest_slots": 100})
        fleet.view(a={"free_slots": 10, "guest_slots": 100}, b={"free_slots": 60, "guest_slots": 50})
        fleet.returns(A, C)
        assert fleet.groups() == {placed.group: "abc"}, "100 more were promised than are set aside; 70 are free"
        fleet.view(b={"free_slots": 90, "guest_slots": 60})
        fleet.returns(A, C)
        assert fleet.groups() == {placed.group: "ab"}
        fleet.give(D1, WithdrawLong(1, 1))
        fleet.view(a={"guest_slots": 0}, b={"guest_slots": 0})
        fleet.returns(A, B)
        assert fleet.groups() == {}
        assert {one.kind for one in fleet.orders.values()} == {ALONE}

    def test_what_cannot_be_taken_back_now_is_answered_by_a_newer_order(self) -> None:
        fleet = Fleet(A, B)
        placed = fleet.placed(1, 200)
        version = fleet.orders[A].plan_version
        fleet.returns(A, B)
        assert fleet.groups() == {placed.group: "ab"}
        fleet.look(0.5)
        assert fleet.orders[A].plan_version == fleet.orders[B].plan_version == version + 1
        assert fleet.groups() == {placed.group: "ab"}
        stale = ReturnMembers(EPOCH, version, placed.group, (B,))
        fleet.give(D1, WithdrawLong(1, 1))
        before = fleet.core.totals.stale
        fleet.give(A, stale)
        assert fleet.core.totals.stale == before + 1
        fleet.returns(A, B)
        assert fleet.groups() == {}

    def test_a_return_is_taken_when_the_promise_that_kept_it_is_withdrawn(self) -> None:
        fleet = Fleet(A, B)
        fleet.placed(1, 200)
        fleet.returns(A, B)
        fleet.give(D1, WithdrawLong(1, 1))
        assert fleet.groups() == {}

    def test_a_leader_that_lacks_slots_gets_the_fewest_instances_that_have_them(self) -> None:
        fleet = Fleet(A, B, C, D)
        placed = fleet.placed(1, 150)
        fleet.lacks(A, 80)
        assert fleet.groups() == {placed.group: "abc"}
        fleet.lacks(A, 150)
        assert fleet.groups() == {placed.group: "abcd"}, "what there is"

    def test_a_wish_stands_until_there_is_an_instance_and_goes_before_new_requests(self) -> None:
        fleet = Fleet(A, B, C)
        placed = fleet.placed(1, 150)
        fleet.view(c={"draining": True})
        fleet.lacks(A, 50)
        assert fleet.ask(2, 60, excluded=(A,)) == []
        assert fleet.groups() == {placed.group: "ab"}
        assert fleet.heard(lambda: fleet.view(1.0, c={"draining": False})) == []
        assert fleet.groups() == {placed.group: "abc"}

    def test_a_wish_that_is_taken_back_adds_nobody(self) -> None:
        fleet = Fleet(A, B, C)
        placed = fleet.placed(1, 150)
        fleet.view(c={"draining": True})
        fleet.lacks(A, 50)
        fleet.lacks(A, 0)
        fleet.view(1.0, c={"draining": False})
        assert fleet.groups() == {placed.group: "ab"}

    def test_only_the_leader_of_the_newest_order_is_heard(self) -> None:
        fleet = Fleet(A, B, C)
        placed = fleet.placed(1, 150)
        fleet.give(D1, WithdrawLong(1, 1))
        order = fleet.orders[B]
        fleet.give(B, ReturnMembers(order.epoch, order.plan_version, order.group, (B,)))
        fleet.give(A, ReturnMembers(EPOCH - 1, order.plan_version, order.group, (B,)))
        fleet.give(C, AskMembers(EPOCH, order.plan_version, order.group, 10))
        assert fleet.groups() == {placed.group: "ab"}
        assert fleet.core.totals.stale == 3


def test_a_group_that_no_request_came_to_ends_at_once_and_one_left_alone_after_a_while() -> None:
    fleet = Fleet(A, B, long_requests__idle_group_s=5.0)
    fleet.silent = {B}
    fleet.ask(1, 150)
    fleet.give(D1, WithdrawLong(1, 1))
    assert fleet.groups() == {}
    fleet = Fleet(A, B, long_requests__idle_group_s=5.0)
    fleet.placed(1, 150)
    fleet.give(D1, Gone("killed"))
    fleet.view(1.0, b={"guest_slots": 50})
    fleet.look(2.0)
    fleet.look(8.0)
    assert len(fleet.groups()) == 1, "another dispatcher may have adopted the request"
    fleet.view(9.0, b={"guest_slots": 0})
    fleet.look(10.0)
    fleet.look(14.9)
    assert len(fleet.groups()) == 1
    fleet.look(15.0)
    assert fleet.groups() == {}


def test_with_times_a_prompt_gets_as_many_instances_as_make_it_faster() -> None:
    """By memory alone two of four instances are enough (`elastic`); by time all four, but for one that is busy."""
    times = GroupTimes({size: PrefillPrices(0.1, 0.01 / size, 0.0) for size in (1, 2, 3, 4)}, 1.0, 5.0, 1.0, 8)
    for policy, known, members in (
        ("elastic", times, "ab"), ("loongserve", None, "ab"), ("loongserve", times, "abd")
    ):  # fmt: skip
        fleet = Fleet(A, B, C, D, times=known, preset=policy)
        fleet.view(c={"running": 3})
        placed = fleet.placed(1, 150)
        assert fleet.groups() == {placed.group: members}
        assert placed.leader == A
    assert placed.why is not None
    assert placed.why.policy == "loongserve"


def test_with_times_what_does_not_fit_joins_a_group_or_waits() -> None:
    times = GroupTimes({1: PrefillPrices(0.1, 0.01, 0.0), 2: PrefillPrices(0.1, 0.005, 0.0)}, 1.0, 5.0, 1.0, 8)
    fleet = Fleet(A, B, times=times, preset="loongserve")
    first = fleet.placed(1, 120)
    assert fleet.placed(2, 70).group == first.group
    assert fleet.ask(3, 50) == []
    (later,) = fleet.heard(lambda: fleet.give(D1, WithdrawLong(1, 1)))
    assert (later.request, later.group) == (3, first.group)


def test_leaders_get_no_members_where_groups_do_not_scale_up() -> None:
    for preset, members in (("loongserve", "abc"), ("loongserve_no_scale_up", "ab")):
        fleet = Fleet(A, B, C, D, preset=preset)
        fleet.placed(1, 180)
        assert list(fleet.groups().values()) == ["ab"]
        fleet.lacks(A, 60)
        assert list(fleet.groups().values()) == [members]


def test_replicas_of_a_static_degree_are_two_instances_each() -> None:
    fleet = Fleet(A, B, C, D, preset="replicated_sp")
    assert fleet.placed(1, 50).leader == A
    assert fleet.placed(2, 60).leader == C
    assert sorted(fleet.groups().values()) == ["ab", "cd"]
    assert fleet.placed(3, 10).leader == A, "150 slots are left there, 140 in the other"
