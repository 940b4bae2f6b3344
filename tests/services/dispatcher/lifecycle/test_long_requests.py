"""Requests that no instance alone can hold: who is asked, where they go, and what each loss does. Exact times."""

import pytest

from dunlin.effects import Gone, Joined, Send
from dunlin.messages.dispatch import Accepted, Place, Refusal, Refused, Returned
from dunlin.messages.door import Abort, Delta, RejectionCode, SubmitRejected
from dunlin.messages.placement import Leads, LongPlaced, LongRefusal, LongRefused, PlaceLong, WithdrawLong
from dunlin.messages.types import FinishReason, RequestClass
from services.dispatcher.requests.timers import DeadlineDue, LeaderlessDue, LongAskDue
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, rows, submit, target
from tests.services.dispatcher.long_request_factories import LONG, G, H, group_of, wide


def test_a_long_request_is_asked_for_and_dispatched_to_the_leader_of_its_group() -> None:
    b = wide()
    sent = b.give(client("c"), submit(LONG, max_tokens=100), 1.0)
    ask = only(sent, PlaceLong)
    assert target(sent, PlaceLong) == [G]
    assert (ask.request, ask.attempt, ask.tokens, ask.longest, ask.excluded) == (1, 1, 1500, 1600, ())
    assert ask.why is not None
    assert ask.why.chosen == "ask g for a group"
    assert b.core.report().queued == 1
    sent = b.give(G, LongPlaced(1, 1, A, 9), 1.5)
    place = only(sent, Place)
    assert target(sent, Place) == [A]
    assert (place.attempt, place.group, len(place.tokens), place.max_tokens, place.queued_s) == (1, 9, 1500, 100, 0.5)
    b.give(A, Accepted(1, 1, 1))
    b.give(A, rows((1, 1, 1500, 7)))
    end = b.give(A, rows((1, 1, 1501, 8), finish=FinishReason.LENGTH))
    assert messages(end, WithdrawLong) == [WithdrawLong(1, 1)], "its slots are promised no more"


def test_others_are_placed_past_those_that_wait_for_a_group() -> None:
    b = wide(placement__max_waiting_per_instance=1)
    for name in range(70):
        assert target(b.give(client(name), submit(LONG)), PlaceLong) == [G]
    assert target(b.give(client("short"), submit()), Place) == [A]
    assert b.core.report().queued == 70


def test_without_a_limit_of_the_clients_it_may_grow_to_what_all_can_hold() -> None:
    b = Bench(placement__long_policy="group").fleet(*(member(one, max_positions=1900) for one in (A, B)))
    b.give(G, Joined())
    b.give(G, Leads(50))
    ask = only(b.give(client("c"), submit(LONG, max_tokens=None)), PlaceLong)
    assert ask.longest == 1501
    assert only(b.give(G, LongPlaced(1, 1, A, 9)), Place).max_tokens == 400
    lost = only(b.give(A, Gone("killed")), PlaceLong)
    assert (lost.attempt, lost.longest) == (2, 1501), "what it may grow to is not what must be free"


class TestTheDoor:
    def test_what_no_group_could_hold_is_refused_with_the_limit(self) -> None:
        b = wide()
        assert target(b.give(client("early"), submit(range(1, 4000))), PlaceLong) == [G], "the manager knows more"
        b.now_s = 60.0
        (refused,) = b.give(client("c"), submit(range(1, 1990), max_tokens=12))
        assert isinstance(refused.message, SubmitRejected)
        assert refused.message.code is RejectionCode.TOO_LONG
        assert "maximum context length is 2000 tokens" in refused.message.detail
        assert target(b.give(client("c"), submit(range(1, 1990), max_tokens=11)), PlaceLong) == [G]

    def test_an_instance_that_restarts_makes_no_request_too_long(self) -> None:
        b = wide(outage__give_up_after_s=60.0)
        b.now_s = 10.0
        b.give(B, Gone("killed"))
        b.view(member(A, max_positions=5000))
        assert target(b.give(client("c"), submit(LONG), 60.0), PlaceLong) == [G]
        b.now_s = 80.0
        b.view(member(A, max_positions=5000))
        (refused,) = b.give(client("d"), submit(LONG))
        assert isinstance(refused.message, SubmitRejected)

    def test_without_groups_all_is_as_ever(self) -> None:
        b = Bench().fleet(member(A), member(B))
        b.give(G, Joined())
        b.give(G, Leads(50))
        (refused,) = b.give(client("c"), submit(LONG))
        assert isinstance(refused.message, SubmitRejected)
        assert "1000 tokens" in refused.message.detail


class TestRefusals:
    @pytest.mark.parametrize("reason", [LongRefusal.NO_ROOM, LongRefusal.QUEUE_FULL, LongRefusal.NOT_LEADER])
    def test_what_may_have_room_later_is_asked_for_again(self, reason: LongRefusal) -> None:
        b = wide()
        b.give(client("c"), submit(LONG), 1.0)
        assert b.give(G, LongRefused(1, 1, reason, 2.5), 2.0) == []
        again = only(b.fire(LongAskDue), PlaceLong)
        assert (b.now_s, again.attempt) == (4.5, 1)

    def test_what_is_too_long_for_all_ends_with_the_limit(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        sent = b.give(G, LongRefused(1, 1, LongRefusal.TOO_LONG, 0.0, 1400))
        last = only(sent, Delta)
        assert last.finish is FinishReason.TOO_LONG
        assert last.detail == "1504 tokens are more than all instances together can hold, 1400"
        assert len(b.core.journal) == 0
        assert messages(sent, WithdrawLong) == []

    @pytest.mark.parametrize("reason", [Refusal.FULL, Refusal.NOT_IN_PLAN, Refusal.TOO_LONG])
    def test_a_leader_that_refuses_keeps_other_requests_and_the_manager_is_asked_again(self, reason: Refusal) -> None:
        b = wide(placement__refusal_pause_s=0.25)
        b.give(client("c"), submit(LONG))
        b.give(G, LongPlaced(1, 1, A, 9))
        assert b.give(A, Refused(1, 1, reason), 2.0) == []
        assert target(b.give(client("short"), submit()), Place) == [A]
        again = only(b.fire(LongAskDue), PlaceLong)
        assert (b.now_s, again.attempt, again.excluded) == (2.25, 2, ())
        assert again.why is not None
        assert again.why.rejected[0].reason == f"refused: {reason.name}"

    def test_a_leader_out_of_reach_is_withdrawn_and_asked_for_again(self) -> None:
        b = wide(placement__refusal_pause_s=0.25)
        b.give(client("c"), submit(LONG))
        b.give(A, Gone("reset"))
        assert messages(b.give(G, LongPlaced(1, 1, A, 9), 2.0), WithdrawLong) == [WithdrawLong(1, 1)]
        assert only(b.fire(LongAskDue), PlaceLong).attempt == 1


def test_a_lost_attempt_is_asked_for_with_all_tokens_so_far() -> None:
    b = wide()
    b.give(client("c"), submit(LONG, max_tokens=100))
    b.give(G, LongPlaced(1, 1, A, 9))
    b.give(A, Accepted(1, 1, 1))
    b.give(A, rows((1, 1, 1500, 7)))
    ask = only(b.give(A, Returned(1, 1), 7.5), PlaceLong)
    assert (ask.attempt, ask.tokens, ask.longest, ask.queued_s) == (2, 1501, 1600, 7.5)
    place = only(b.give(G, LongPlaced(1, 2, B, 10)), Place)
    assert (place.attempt, place.group, list(place.tokens)[-1], place.prompt_tokens) == (2, 10, 7, 1500)
    ask = only(b.give(B, Gone("killed")), PlaceLong)
    assert ask.attempt == 3
    assert b.give(G, LongPlaced(1, 2, A, 11)) == [], "an answer about an older attempt"


class TestClientsThatLeave:
    def test_while_it_waits_to_ask_again(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        b.give(G, LongRefused(1, 1, LongRefusal.NO_ROOM, 2.5), 2.0)
        b.give(client("c"), Abort())
        assert b.fire(LongAskDue) == []

    def test_while_it_waits(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        assert b.give(client("c"), Abort()) == [Send(G, WithdrawLong(1, 1))]
        assert b.give(G, LongPlaced(1, 1, A, 9)) == []

    def test_while_it_runs(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        b.give(G, LongPlaced(1, 1, A, 9))
        assert messages(b.give(client("c"), Gone("left")), WithdrawLong) == [WithdrawLong(1, 1)]

    def test_its_deadline_counts_while_it_waits(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG, timeout_s=3.0))
        sent = b.fire(DeadlineDue)
        assert (b.now_s, only(sent, Delta).finish) == (3.0, FinishReason.DEADLINE)
        assert messages(sent, WithdrawLong) == [WithdrawLong(1, 1)]


class TestManagers:
    def test_the_one_that_leads_next_is_asked(self) -> None:
        b = wide()
        b.give(client("batch"), submit(LONG, request_class=RequestClass.BATCH))
        b.give(client("c"), submit(LONG))
        assert b.give(H, Joined()) == []
        assert b.give(H, Leads(0)) == []
        sent = b.give(H, Leads(60))
        assert target(sent, PlaceLong) == [H, H]
        assert [ask.request for ask in messages(sent, PlaceLong)] == [2, 1], "interactive requests first"
        assert b.give(G, LongPlaced(1, 1, A, 9)) == [], "it was asked of another since"
        assert only(b.give(H, LongPlaced(1, 1, A, 9)), Place).group == 9
        assert b.give(G, Leads(0)) == []

    def test_one_that_leads_again_has_forgotten_what_it_was_asked(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        assert b.give(G, Leads(0), 1.0) == []
        assert target(b.give(G, Leads(70), 1.5), PlaceLong) == [G]

    def test_without_one_a_group_of_the_last_view_is_taken_after_a_second(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG), 1.0)
        b.view(*group_of(9))
        assert b.give(G, Gone("killed"), 2.0) == []
        b.now_s = 2.5
        assert b.view(*group_of(9)) == []
        sent = b.fire(LeaderlessDue)
        place = only(sent, Place)
        assert (b.now_s, place.group, target(sent, Place)) == (3.0, 9, [A])
        assert place.why is not None
        assert place.why.policy == "roomiest_group"

    def test_without_one_and_without_room_it_waits_for_either(self) -> None:
        b = wide()
        b.give(G, Gone("killed"), 0.5)
        b.give(client("c"), submit(LONG), 1.0)
        b.give(client("d"), submit(LONG), 1.5)
        b.view(*group_of(9, b=400))
        assert b.fire(LeaderlessDue) == []
        assert b.now_s == 2.0
        sent = b.view(*group_of(9, b=600))
        assert [place.request for place in messages(sent, Place)] == [1], "the room is not given twice"
        assert target(b.give(H, Leads(60), 3.0), PlaceLong) == [H]

    def test_a_manager_that_comes_back_in_time_is_asked(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG), 1.0)
        b.view(*group_of(9))
        b.give(G, Gone("killed"), 2.0)
        b.give(G, Joined(), 2.1)
        assert target(b.give(G, Leads(50), 2.2), PlaceLong) == [G]
        assert b.fire(LeaderlessDue) == []


class TestPromptsThatAreWorthAGroup:
    def test_they_are_asked_for_and_fall_back_to_one_instance(self) -> None:
        b = wide(placement__long_tokens=500)
        assert target(b.give(client("short"), submit(range(1, 501))), Place) == [A]
        assert target(b.give(client("c"), submit(range(1, 502))), PlaceLong) == [G]
        place = only(b.give(G, LongRefused(2, 1, LongRefusal.NO_ROOM, 1.0)), Place)
        assert (place.request, place.group) == (2, 0)
        b.give(G, Leads(0))
        b.give(client("d"), submit(range(1, 502)), 5.0)
        place = only(b.fire(LeaderlessDue), Place)
        assert (place.request, place.group) == (3, 0)

    def test_a_group_of_one_is_a_group(self) -> None:
        b = wide(placement__long_tokens=500)
        b.give(client("c"), submit(range(1, 502)))
        assert only(b.give(G, LongPlaced(1, 1, B, 12)), Place).group == 12


def test_members_of_a_group_are_given_other_requests() -> None:
    b = wide()
    b.view(*group_of(9, a=500, b=900))
    assert target(b.give(client("c"), submit()), Place) == [B]
    assert b.core.fleet.serving_count == 2


def test_a_request_that_the_fleet_no_longer_holds_alone_gets_a_group() -> None:
    b = Bench(placement__long_policy="group").fleet(member(A, capacity_slots=3000, max_positions=5000))
    b.give(G, Joined())
    b.give(G, Leads(50))
    assert target(b.give(client("c"), submit(LONG)), Place) == [A]
    b.give(B, Joined())
    sent = [*b.give(A, Gone("killed")), *b.view(member(B), member(A, max_positions=5000), base_version=0)]
    assert target(sent, PlaceLong) == [G]


def test_a_starved_batch_request_is_asked_for_as_an_interactive_one() -> None:
    b = wide(starvation__batch_wait_s=4.0)
    b.give(client("batch"), submit(LONG, request_class=RequestClass.BATCH))
    b.now_s = 3.9
    assert b.view(member(A, max_positions=5000), member(B, max_positions=5000)) == []
    b.now_s = 4.5
    again = only(b.view(member(A, max_positions=5000), member(B, max_positions=5000)), PlaceLong)
    assert (again.request, again.attempt, again.request_class) == (1, 1, RequestClass.INTERACTIVE)
    assert only(b.give(G, LongPlaced(1, 1, A, 9)), Place).rises_after_s == 0.0
