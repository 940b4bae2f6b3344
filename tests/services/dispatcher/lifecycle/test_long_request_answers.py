"""Requests that wait for a group: when they are asked for again, and what managers and leaders say of them."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Accepted, Place, Refusal, Refused, Returned
from dunlin.messages.door import Delta
from dunlin.messages.placement import Leads, LongPlaced, LongRefusal, LongRefused, PlaceLong, WithdrawLong
from dunlin.messages.types import FinishReason, Why
from services.dispatcher.requests.timers import LeaderlessDue, LongAskDue
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, rows, submit, target
from tests.services.dispatcher.long_request_factories import LONG, G, H, group_of, wide

C = Address("instance", "c", 13)


def placed(most: int | None = 100, **config: Any) -> Bench:
    """A long request that runs in group 9, which A leads."""
    b = wide(**config)
    b.give(client("c"), submit(LONG, max_tokens=most))
    b.give(G, LongPlaced(1, 1, A, 9))
    b.give(A, Accepted(1, 1, 1))
    return b


class TestAskingAgain:
    def test_after_a_loss_at_once_though_a_group_had_refused_it_before(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        b.give(G, LongPlaced(1, 1, A, 9))
        b.give(A, Refused(1, 1, Refusal.FULL))
        assert only(b.fire(LongAskDue), PlaceLong).attempt == 2
        b.give(G, LongPlaced(1, 2, A, 9))
        b.give(A, Accepted(1, 2, 1))
        assert only(b.give(A, Returned(1, 2)), PlaceLong).attempt == 3

    @pytest.mark.parametrize(("most", "longest"), [(100, 1600), (None, 1502)])
    def test_with_its_generated_tokens(self, most: int | None, longest: int) -> None:
        b = placed(most)
        b.give(A, rows((1, 1, 1500, 7)))
        ask = only(b.give(A, Returned(1, 1)), PlaceLong)
        assert (ask.generated, ask.tokens, ask.longest) == (1, 1501, longest)
        assert ask.why is not None
        assert [(figure.name, figure.value) for figure in ask.why.figures] == [
            ("tokens", 1501),
            ("longest", longest),
            ("instance_limit", 1000),
        ]

    def test_not_for_one_that_was_lost_too_often(self) -> None:
        b = placed(placement__max_lost_attempts=1)
        sent = b.give(A, Returned(1, 1))
        assert only(sent, Delta).finish is FinishReason.ERROR
        assert messages(sent, PlaceLong) == []
        assert messages(sent, WithdrawLong) == [WithdrawLong(1, 1)]

    def test_after_the_usual_pause_where_the_manager_names_none(self) -> None:
        b = wide(placement__refusal_pause_s=0.25)
        b.give(client("c"), submit(LONG), 1.0)
        b.give(G, LongRefused(1, 1, LongRefusal.NO_ROOM, 0.0), 2.0)
        assert only(b.fire(LongAskDue), PlaceLong).attempt == 1
        assert b.now_s == 2.25

    def test_the_pause_of_an_earlier_attempt_is_none_of_this_one(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG), 1.0)
        b.give(G, LongRefused(1, 1, LongRefusal.NO_ROOM, 9.0), 2.0)
        b.give(G, Leads(51), 3.0)
        b.give(G, LongPlaced(1, 1, A, 9))
        b.give(A, Returned(1, 1))
        b.give(G, LongRefused(1, 2, LongRefusal.NO_ROOM, 60.0), 4.0)
        assert b.fire(LongAskDue) == []
        assert only(b.fire(LongAskDue), PlaceLong).attempt == 2
        assert b.now_s == 64.0

    def test_not_for_one_that_waits_for_an_instance_meanwhile(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG), 1.0)
        b.give(client("d"), submit(LONG), 1.0)
        b.give(G, LongRefused(1, 1, LongRefusal.NO_ROOM, 9.0), 2.0)
        b.give(G, Gone("killed"), 2.5)
        b.fire(LeaderlessDue)
        b.view(member(A, capacity_slots=3000, max_positions=5000, free_slots=0, waiting=16))
        b.give(H, Leads(60))
        assert b.fire(LongAskDue) == []
        sent = b.view(member(A, capacity_slots=3000, free_slots=3000, max_positions=5000))
        assert target(sent, Place) == [A, A]

    def test_without_the_instances_that_have_not_its_adapter(self) -> None:
        b = Bench(placement__long_policy="group").fleet(member(A), member(B, capacity_slots=500, free_slots=500))
        b.give(G, Joined())
        b.give(G, Leads(50))
        assert target(b.give(client("c"), submit(range(700), adapter="aa")), Place) == [A]
        assert only(b.give(A, Refused(1, 1, Refusal.NO_ADAPTER)), PlaceLong).excluded == (A,)
        assert b.give(G, LongRefused(1, 2, LongRefusal.NO_ROOM, 2.5), 1.0) == [], "it does not go to A alone"
        assert only(b.fire(LongAskDue), PlaceLong).attempt == 2
        assert b.now_s == 3.5


class TestWhatALeaderSays:
    def test_that_it_has_not_the_adapter_keeps_it_out_of_the_next_group(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG, adapter="aa"))
        b.give(G, LongPlaced(1, 1, A, 9))
        b.give(A, Refused(1, 1, Refusal.NO_ADAPTER))
        assert only(b.fire(LongAskDue), PlaceLong).excluded == (A,)

    def test_that_the_request_is_invalid_ends_it(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        b.give(G, LongPlaced(1, 1, A, 9))
        sent = b.give(A, Refused(1, 1, Refusal.INVALID))
        delta = only(sent, Delta)
        assert (delta.finish, delta.detail) == (FinishReason.ERROR, "a cannot run it: INVALID")
        assert len(b.core.journal) == 0

    def test_that_it_is_full_keeps_it_from_other_requests_once_it_is_asked_for_it_alone(self) -> None:
        b = wide(placement__long_tokens=500)
        b.give(client("c"), submit(range(1, 502)))
        b.give(G, LongPlaced(1, 1, A, 9))
        b.give(A, Returned(1, 1))
        b.view(member(A, max_positions=5000), member(B, max_positions=5000, free_slots=600))
        assert target(b.give(G, LongRefused(1, 2, LongRefusal.NO_ROOM, 1.0)), Place) == [A]
        assert target(b.give(A, Refused(1, 2, Refusal.FULL)), Place) == [B]
        assert target(b.give(client("short"), submit()), Place) == [B], "A is left alone for a while"


class TestWhatAManagerSays:
    def test_that_it_is_too_long_counts_no_more_where_one_instance_holds_it(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        b.give(C, Joined())
        b.view(member(A, max_positions=5000), member(C, capacity_slots=3000, max_positions=5000))
        assert target(b.give(G, LongRefused(1, 1, LongRefusal.TOO_LONG, 0.0, 1000)), Place) == [C]

    def test_that_it_is_too_long_ends_it_with_what_all_hold_where_no_limit_is_named(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        last = only(b.give(G, LongRefused(1, 1, LongRefusal.TOO_LONG)), Delta)
        assert last.detail == "1504 tokens are more than all instances together can hold, 2000"

    def test_that_there_is_a_group_is_believed_though_the_view_shows_less(self) -> None:
        b = Bench(placement__long_policy="group").fleet(member(A, max_positions=5000))
        b.give(G, Joined())
        b.give(G, Leads(50))
        assert target(b.give(client("c"), submit(LONG, max_tokens=None)), PlaceLong) == [G]
        place = only(b.give(G, LongPlaced(1, 1, A, 9)), Place)
        assert place.max_tokens == 1, "a token more than it has"

    def test_why_it_chose_the_group_is_the_reason_of_the_attempt(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        place = only(b.give(G, LongPlaced(1, 1, A, 9, Why("fits", "group 9"))), Place)
        assert place.why is not None
        assert (place.why.policy, place.why.chosen) == ("fits", "group 9")

    def test_that_a_term_of_its_own_follows_means_that_it_forgot(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        assert target(b.give(G, Leads(51)), PlaceLong) == [G]

    def test_what_it_says_of_an_older_attempt_is_stale(self) -> None:
        b = placed()
        assert b.give(G, LongPlaced(1, 1, A, 9)) == b.give(G, LongRefused(1, 1, LongRefusal.NO_ROOM)) == []
        assert b.core.report().stale_total == 2

    def test_one_that_is_gone_is_not_told_of_an_end(self) -> None:
        b = placed()
        b.give(G, Gone("killed"))
        assert messages(b.give(client("c"), Gone("left")), WithdrawLong) == []

    def test_a_second_absence_counts_like_the_first(self) -> None:
        b = wide()
        b.give(G, Gone("killed"), 0.5)
        b.give(client("c"), submit(LONG), 1.0)
        b.fire(LeaderlessDue)
        assert target(b.give(G, Leads(51), 3.0), PlaceLong) == [G]
        b.view(*group_of(9))
        assert b.give(G, Gone("killed"), 4.0) == [], "it counts from now on"
        assert target(b.fire(LeaderlessDue), Place) == [A]
        assert b.now_s == 5.0
