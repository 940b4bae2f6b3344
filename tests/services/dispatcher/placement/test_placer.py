"""The placer in the core: which waiting request is dispatched to which instance, and when."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import (
    Accepted,
    NotHeld,
    Place,
    Returned,
)
from dunlin.messages.door import Admitted, Delta, RejectionCode, SubmitRejected
from dunlin.messages.types import FinishReason, GroupKind, GroupRole, RequestClass, SamplingParams, i32
from tests.services.dispatcher.factories import (
    A,
    B,
    Bench,
    client,
    member,
    messages,
    only,
    rows,
    submit,
    target,
)


@pytest.mark.parametrize(
    "overrides",
    [
        {"ready": False},
        {"suspect": True},
        {"plan_version": 0},
        {"kind": GroupKind.RING},
        {"part": GroupRole.MASTER},
        {"address": Address("instance", "a", 10)},
    ],
)
def test_only_instances_that_can_serve_alone_are_candidates(overrides: dict[str, Any]) -> None:
    bench = Bench()
    bench.give(A, Joined())
    bench.view(replace(member(A), **overrides))
    assert messages(bench.give(client("c"), submit()), Place) == []
    assert target(bench.view(member(A)), Place) == [A]


def test_requests_wait_until_stream_and_view_are_there() -> None:
    bench = Bench()
    assert messages(bench.give(client("c"), submit()), Place) == []
    assert messages(bench.view(member(A)), Place) == []
    assert target(bench.give(A, Joined()), Place) == [A]


def test_the_least_loaded_instance_gets_it_and_own_promises_count() -> None:
    bench = Bench().fleet(member(A, free_slots=900), member(B))
    places = [bench.give(client(n), submit(range(50))) for n in range(4)]
    assert [target(sent, Place) for sent in places] == [[B], [A], [B], [A]]


def test_instances_take_turns_whatever_they_hold() -> None:
    bench = Bench(placement__policy="round_robin").fleet(member(A, free_slots=1), member(B))
    places = [bench.give(client(n), submit()) for n in range(5)]
    assert [target(sent, Place) for sent in places] == [[A], [B], [A], [B], [A]]
    bench.give(A, Joined())  # another stream: it has had no turn on this one
    assert target(bench.give(client("next"), submit()), Place) == [A]


def test_a_view_replaces_reservations_that_the_instance_has_counted() -> None:
    bench = Bench(placement__view_lag_s=0.1).fleet(member(A), member(B))
    bench.run("c", tokens=range(500))
    bench.now_s = 0.05
    bench.view(member(A), base_version=1)
    assert target(bench.give(client("d"), submit()), Place) == [B]
    bench.now_s = 0.1
    bench.view(member(A), base_version=2)
    assert target(bench.give(client("e"), submit()), Place) == [A]


def test_only_so_many_wait_at_an_instance_without_room() -> None:
    bench = Bench(placement__max_waiting_per_instance=2).fleet(member(A, free_slots=2))
    sent = [bench.give(client(n), submit()) for n in range(4)]
    assert [len(messages(each, Place)) for each in sent] == [1, 1, 0, 0]
    assert bench.core.report().queued == 2
    later = bench.view(member(A, free_slots=2, running=2), base_version=1)
    assert messages(later, Place) == []  # they are not accepted yet, so the view has not counted them
    bench.give(A, Accepted(1, 1, 1))
    bench.now_s = 0.2
    assert [place.request for place in messages(bench.view(member(A, free_slots=9)), Place)] == [3, 4]


def test_nothing_smaller_overtakes_a_request_that_waits_for_room() -> None:
    bench = Bench(placement__max_waiting_per_instance=1).fleet(member(A, free_slots=50))
    assert target(bench.give(client("first"), submit()), Place) == [A]
    assert messages(bench.give(client("big"), submit(range(100))), Place) == []
    assert messages(bench.give(client("small"), submit()), Place) == []
    sent = bench.view(member(A, free_slots=103))
    assert [place.request for place in messages(sent, Place)] == [2]
    sent = bench.view(member(A, free_slots=106))
    assert [place.request for place in messages(sent, Place)] == [3]


def test_a_request_that_just_fits_is_dispatched() -> None:
    bench = Bench().fleet(member(A))
    assert target(bench.give(client("c"), submit(max_tokens=997)), Place) == [A]


def test_one_pass_dispatches_however_many_wait() -> None:
    bench = Bench()
    for name in range(200):
        bench.give(client(name), submit())
    bench.give(A, Joined())
    sent = bench.view(member(A))
    assert [place.request for place in messages(sent, Place)] == [*range(1, 201)]


def test_free_slots_are_no_reason_to_make_a_long_queue_longer() -> None:
    bench = Bench(placement__max_waiting_per_instance=2).fleet(member(A, waiting=2))
    assert messages(bench.give(client("c"), submit()), Place) == []
    assert target(bench.view(member(A, waiting=1)), Place) == [A]


def test_what_only_a_busy_instance_could_hold_keeps_no_other_waiting() -> None:
    small = member(B, capacity_slots=50, free_slots=50)
    bench = Bench(placement__max_waiting_per_instance=1).fleet(member(A, free_slots=0, waiting=1), small)
    assert messages(bench.give(client("big"), submit(range(100))), Place) == []
    assert target(bench.give(client("small"), submit()), Place) == [B]


def test_without_a_limit_a_request_gets_what_its_instance_can_hold_and_keeps_it() -> None:
    bench = Bench().fleet(member(A, max_positions=100))
    assert only(bench.give(client("c"), submit(max_tokens=None)), Place).max_tokens == 97
    bench.give(A, Gone())
    bench.give(B, Joined())
    assert only(bench.view(member(B)), Place).max_tokens == 97


def test_without_a_limit_it_goes_on_where_less_is_left_than_at_its_first_instance() -> None:
    bench = Bench().fleet(member(A))
    assert only(bench.give(client("c"), submit(max_tokens=None)), Place).max_tokens == 997
    bench.give(A, Accepted(1, 1, 1))
    bench.give(A, rows((1, 1, 3, 70)))
    bench.give(A, Gone())
    bench.give(B, Joined())
    again = only(bench.view(member(B, capacity_slots=100)), Place)
    assert (list(again.tokens), again.max_tokens) == ([5, 6, 7, 70], 97)


def test_without_a_limit_it_ends_where_nothing_is_left_for_a_next_token() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit(max_tokens=None))
    bench.give(A, Gone())
    bench.give(B, Joined())
    assert messages(bench.view(member(B, capacity_slots=3)), Delta) == []
    bench.now_s = 60.0
    assert only(bench.view(member(B, capacity_slots=3)), Delta).finish is FinishReason.TOO_LONG


SMALL = member(A, capacity_slots=50, free_slots=50)


def test_a_request_waits_for_the_one_instance_that_can_hold_it_to_restart() -> None:
    bench = Bench(outage__give_up_after_s=60.0).fleet(SMALL, member(B))
    bench.run("c", B, max_tokens=90)
    bench.give(B, Gone("crashed"))
    assert messages(bench.view(SMALL), Delta) == []
    assert messages(bench.give(client("d"), submit(max_tokens=90)), Admitted) != []
    assert target(bench.give(client("e"), submit()), Place) == [A], "it holds up no other"
    restarted = Address(B.role, B.name, B.incarnation + 1)
    bench.give(restarted, Joined(), 59.0)
    assert target(bench.view(SMALL, member(restarted)), Place) == [restarted] * 2


def test_a_request_is_too_long_once_its_instance_has_been_away_for_long() -> None:
    bench = Bench(outage__give_up_after_s=60.0).fleet(SMALL, member(B))
    bench.run("c", B, max_tokens=90)
    bench.give(B, Gone("crashed"))
    bench.view(SMALL)
    bench.now_s = 60.0
    assert only(bench.view(SMALL), Delta).finish is FinishReason.TOO_LONG
    assert only(bench.give(client("d"), submit(max_tokens=90)), SubmitRejected).code is RejectionCode.TOO_LONG


def test_a_queued_request_that_no_known_instance_can_hold_ends_with_an_error() -> None:
    bench = Bench()
    bench.give(client("c"), submit(max_tokens=90))
    bench.give(A, Joined())
    sent = bench.view(member(A, capacity_slots=80, free_slots=80))
    assert only(sent, Delta).detail == "93 tokens are more than any instance can hold"
    assert bench.core.report().failed_total == 1


def test_it_waits_for_a_bigger_instance_that_is_suspect() -> None:
    bench = Bench().fleet(member(A, capacity_slots=50), member(B, suspect=True))
    assert messages(bench.give(client("c"), submit(max_tokens=90)), Admitted) != []
    assert target(bench.view(member(B), base_version=1), Place) == [B]


def test_interactive_requests_are_dispatched_before_older_batch_requests() -> None:
    bench = Bench()
    bench.give(A, Joined())
    for number, request_class in enumerate((RequestClass.BATCH, RequestClass.INTERACTIVE, RequestClass.BATCH)):
        bench.give(client(number), submit(request_class=request_class))
    places = messages(bench.view(member(A)), Place)
    assert [(place.request, place.may_preempt) for place in places] == [(2, True), (1, False), (3, False)]


def test_batch_requests_that_find_no_room_hold_up_no_interactive_one() -> None:
    bench = Bench().fleet(member(A, free_slots=0, waiting=16, batch_waiting=16))
    assert messages(bench.give(client(1), submit(request_class=RequestClass.BATCH)), Place) == []
    assert target(bench.give(client(2), submit()), Place) == [A]


def test_an_instance_is_told_what_the_client_asked_for() -> None:
    asked = submit(
        sampling=SamplingParams(temperature=0.5, seed=9),
        stop_ids=i32([2, 3]),
        tenant="t",
        request_class=RequestClass.BATCH,
    )
    place = only(Bench().fleet(member(A)).give(client("c"), asked), Place)
    assert (place.sampling, place.stop_ids, place.tenant) == (asked.sampling, asked.stop_ids, "t")
    assert place.request_class is RequestClass.BATCH


def test_the_reason_of_a_new_attempt_has_the_policys_and_what_became_of_the_old_one() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=900))
    first = bench.run("c")
    assert first.why is not None
    bench.give(A, rows((1, 1, 3, 70)))
    again = only(bench.give(A, Returned(1, 1)), Place)
    assert again.why is not None
    figures = {figure.name: figure.value for figure in again.why.figures}
    assert [*figures] == [*(figure.name for figure in first.why.figures), "attempt", "tokens_kept"]
    assert (figures["attempt"], figures["tokens_kept"]) == (2, 1)
    assert [each.option for each in again.why.rejected] == [str(A), str(B)]


def test_the_reason_counts_all_candidates_though_few_are_looked_at() -> None:
    many = [Address("instance", f"i{number}", number) for number in range(9)]
    place = only(Bench().fleet(*(member(each) for each in many)).give(client("c"), submit()), Place)
    assert place.why is not None
    assert {figure.name: figure.value for figure in place.why.figures}["candidates"] == 9


def test_a_resumed_requests_client_has_waited_since_it_came_here() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit(key="req-7-9", received=i32([70])), 1.0)
    place = only(bench.give(A, NotHeld(1, 1), 3.5), Place)
    assert (place.queued_s, place.lost_s) == (0.0, 2.5)


def test_one_that_no_instance_can_hold_ends_once_however_many_rounds_place_others() -> None:
    bench = Bench()
    bench.give(client("big"), submit(max_tokens=90))
    for name in range(70):
        bench.give(client(name), submit([5], max_tokens=1))
    bench.give(A, Joined())
    sent = bench.view(member(A, capacity_slots=80, free_slots=80))
    assert [(send.to, send.message.finish) for send in sent if isinstance(send.message, Delta)] == [
        (client("big"), FinishReason.TOO_LONG)
    ]
    assert len(messages(sent, Place)) == 70
