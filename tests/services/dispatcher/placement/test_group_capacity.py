"""Groups by the views alone: what one has room for without a manager, and how long a request may be."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Gone, Joined
from dunlin.messages.dispatch import Accepted, Place, Returned
from dunlin.messages.door import RejectionCode, SubmitRejected
from dunlin.messages.lifecycle import FirstToken, RisenInQueue
from dunlin.messages.placement import Leads, LongPlaced, PlaceLong
from dunlin.messages.types import GroupKind, RequestClass, SamplingParams
from services.dispatcher.requests.timers import LeaderlessDue
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, rows, submit, target
from tests.services.dispatcher.long_request_factories import LONG, G, group_of, wide


def leaderless(*members: Any) -> Bench:
    """No manager has led for long, and these are in the view; nothing waits."""
    b = wide()
    b.give(G, Gone("killed"), 0.5)
    b.give(client("first"), submit(LONG), 1.0)
    b.fire(LeaderlessDue)
    b.give(client("first"), Gone("left"))
    b.view(*members)
    return b


class TestGroupsOfTheLastView:
    def test_what_is_too_long_now_lets_nothing_younger_pass(self) -> None:
        b = leaderless(*group_of(9, a=800, b=600))
        assert messages(b.give(client("c"), submit(LONG)), Place) == []
        assert messages(b.give(client("d"), submit(range(1, 1201))), Place) == []
        assert messages(b.view(*group_of(9)), Place)[0].request == 2

    def test_those_that_their_clients_have_tokens_of_come_first(self) -> None:
        b = wide()
        b.give(client("old"), submit(LONG))
        b.give(client("c"), submit(LONG, max_tokens=100))
        b.give(G, LongPlaced(2, 1, A, 9))
        b.give(A, rows((2, 1, 1500, 7)))
        b.give(G, Gone("killed"), 1.0)
        b.give(A, Returned(2, 1))
        b.view(*group_of(9))
        assert [place.request for place in messages(b.fire(LeaderlessDue), Place)] == [2]

    def test_what_runs_there_is_in_the_view(self) -> None:
        b = leaderless(*group_of(9))
        assert target(b.give(client("c"), submit(LONG)), Place) == [A]
        b.give(A, Accepted(2, 1, 1))
        assert target(b.give(client("d"), submit(LONG)), Place) == [A]

    def test_requests_of_the_leader_alone_take_no_room_of_the_group(self) -> None:
        b = leaderless(*group_of(9, a=900, b=604))
        b.view(*group_of(9, a=900, b=604)[:1], base_version=1)
        assert target(b.give(client("short"), submit()), Place) == [A]
        assert target(b.give(client("c"), submit(LONG)), Place) == [A]

    @pytest.mark.parametrize(
        ("of", "state"),
        [
            (1, {"ready": False}),
            (1, {"suspect": True}),
            (1, {"kind": GroupKind.LOCAL}),
            (0, {"draining": True}),
        ],
        ids=str,
    )
    def test_members_that_cannot_serve_give_no_room(self, of: int, state: dict[str, Any]) -> None:
        members = group_of(9)
        members[of] = replace(members[of], **state)
        b = leaderless(*members)
        assert messages(b.give(client("c"), submit(LONG)), Place) == []
        assert target(b.view(*group_of(9)), Place) == [A]

    def test_one_whose_leader_is_out_of_reach_is_none(self) -> None:
        b = leaderless(*group_of(9))
        b.give(A, Gone("reset"))
        assert messages(b.give(client("c"), submit(LONG)), Place) == []

    def test_the_first_token_says_how_long_it_waited_for_a_group(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG), 1.0)
        b.give(G, LongPlaced(1, 1, A, 9), 3.0)
        b.give(A, rows((1, 1, 1500, 7)), 7.0)
        assert only(b.events, FirstToken).queued_s == 2.0

    def test_no_more_is_reserved_at_a_leader_than_it_has(self) -> None:
        b = wide()
        b.give(client("c"), submit(LONG))
        b.give(G, LongPlaced(1, 1, A, 9))
        assert {address: one.free_slots for address, one in b.core.fleet.candidates(1, 1, [])} == {A: 0, B: 1000}


class TestTheQueue:
    def test_those_that_wait_for_a_group_fill_it_too(self) -> None:
        b = wide(admission__max_queued=1)
        b.give(client("c"), submit(LONG))
        assert only(b.give(client("d"), submit(LONG)), SubmitRejected).code is RejectionCode.FULL

    def test_batch_work_that_rose_fills_that_of_interactive_requests(self) -> None:
        b = wide(admission__max_queued=1, starvation__batch_wait_s=4.0)
        b.give(client("batch"), submit(LONG, request_class=RequestClass.BATCH))
        b.give(G, Leads(50), 4.5)
        assert only(b.give(client("d"), submit(LONG)), SubmitRejected).code is RejectionCode.FULL

    def test_an_interactive_request_that_waits_for_a_group_does_not_rise(self) -> None:
        b = wide(starvation__batch_wait_s=4.0)
        b.give(client("c"), submit(LONG))
        b.give(client("batch"), submit(LONG, request_class=RequestClass.BATCH), 1.0)
        risen = only(b.give(G, Leads(50), 9.0), RisenInQueue)
        batch = b.core.journal.by_reader(client("batch"))
        assert batch is not None
        assert risen.request == batch.key
        assert b.core.report().risen_total == 1

    def test_a_prompt_that_one_instance_just_holds_may_have_log_probabilities(self) -> None:
        b = wide()
        wanted = SamplingParams(prompt_logprobs=0)
        assert target(b.give(client("c"), submit(range(996), sampling=wanted)), Place) == [A]
        refused = only(b.give(client("d"), submit(range(997), sampling=wanted)), SubmitRejected)
        assert refused.field == "prompt_logprobs"


class TestWhatAllCanHold:
    def test_instances_that_are_being_emptied_hold_no_part(self) -> None:
        b = Bench(placement__long_policy="group")
        b.fleet(member(A, max_positions=5000), member(B, max_positions=5000, draining=True))
        refused = only(b.give(client("c"), submit(LONG), 60.0), SubmitRejected)
        assert "maximum context length is 1000 tokens" in refused.detail

    def test_one_that_is_being_emptied_may_be_the_largest(self) -> None:
        b = Bench(placement__long_policy="group")
        b.fleet(member(A, max_positions=5000), member(B, capacity_slots=3000, max_positions=5000, draining=True))
        assert messages(b.give(client("c"), submit(LONG), 60.0), SubmitRejected) == []

    def test_without_groups_it_is_what_the_largest_holds(self) -> None:
        b = Bench().fleet(member(A, max_positions=5000), member(B, max_positions=5000))
        assert "1000 tokens" in only(b.give(client("c"), submit(LONG)), SubmitRejected).detail

    def test_a_model_without_a_limit_of_its_own_sets_none(self) -> None:
        b = Bench(placement__long_policy="group").fleet(member(A, max_positions=0), member(B, max_positions=0))
        assert messages(b.give(client("c"), submit(LONG), 60.0), SubmitRejected) == []

    def test_before_any_instance_is_known_no_prompt_needs_a_group(self) -> None:
        b = Bench(placement__long_policy="group")
        wanted = submit(LONG, sampling=SamplingParams(prompt_logprobs=0))
        assert messages(b.give(client("c"), wanted), SubmitRejected) == []

    def test_what_a_lost_instance_left_a_request_is_not_cut_where_a_group_may_hold_it(self) -> None:
        b = Bench(placement__long_policy="group").fleet(member(A, capacity_slots=3000, max_positions=5000))
        b.give(G, Joined())
        b.give(G, Leads(50))
        assert only(b.give(client("c"), submit(max_tokens=None)), Place).max_tokens == 2997
        b.give(B, Joined())
        b.give(A, Gone("killed"))
        sent = b.view(member(B, max_positions=5000))
        assert (target(sent, PlaceLong), messages(sent, Place)) == ([G], [])
