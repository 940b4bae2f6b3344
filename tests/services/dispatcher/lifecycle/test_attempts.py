"""The dispatcher's core: attempts that are lost, refused, or doubted, in exact virtual time."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import After, Gone, Joined, Send
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Continued,
    Ended,
    Failed,
    Place,
    Poisoned,
    Preempted,
    Refusal,
    Refused,
    Returned,
)
from dunlin.messages.door import (
    Delta,
)
from dunlin.messages.fleet import DispatcherReport, FleetView
from dunlin.messages.types import FinishReason, RejectedOption, Why, f32, i32
from services.dispatcher.requests.request import RequestState
from services.dispatcher.requests.timers import RefusalPauseOver
from tests.services.dispatcher.factories import (
    MONITOR,
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


def state_of(bench: Bench, number: int) -> RequestState:
    request = bench.core.journal.get(number)
    assert request is not None
    return request.state


def test_a_suspect_instance_is_fenced_and_its_requests_are_dispatched_elsewhere() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)))
    sent = bench.view(member(A, suspect=True), base_version=1)
    assert sent[0].to == A
    assert isinstance(sent[0].message, Cancel)
    assert (sent[0].message.request, sent[0].message.attempt) == (1, 1)
    assert target(sent, Place) == [B]
    # It wakes: what it still says of the old attempt reaches no reader and is not answered again.
    assert bench.give(A, rows((1, 1, 4, 99))) == []
    assert bench.core.report().stale_total == 1
    bench.give(A, Ended(1, 1))
    assert bench.give(B, rows((1, 2, 4, 71))) == [Send(client("c"), Delta(i32([71])))]


def test_a_returned_request_is_dispatched_again_even_to_the_same_instance() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    sent = bench.give(A, Returned(1, 1))
    assert [(place.attempt, place.request) for place in messages(sent, Place)] == [(2, 1)]
    assert bench.give(A, Returned(1, 1)) == []
    assert bench.core.report().stale_total == 1


@pytest.mark.parametrize("loss", ["returned", "a gap"])
def test_a_lost_attempt_frees_what_was_reserved_for_it(loss: str) -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.view(member(A, free_slots=10), member(B))
    bench.give(A, Returned(1, 1) if loss == "returned" else rows((1, 1, 9, 70)))
    free = {address: one.free_slots for address, one in bench.core.fleet.candidates(1, 1, [])}
    assert free == {A: 10, B: 997}


def test_an_unknown_attempt_is_cancelled_once() -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(A, rows((77, 3, 5, 1)))
    assert [(cancel.request, cancel.attempt) for cancel in messages(sent, Cancel)] == [(77, 3)]
    assert bench.give(A, rows((77, 3, 6, 1))) == []
    bench.give(A, Ended(77, 3))
    assert messages(bench.give(A, Accepted(77, 3, 1)), Cancel) != []
    assert bench.core.report().stale_total == 3


@pytest.mark.parametrize(
    "message",
    [Refused(77, 1, Refusal.FULL), Returned(77, 1), Preempted(77, 1), Continued(77, 1), Poisoned(77, 1), Failed(77, 1)],
    ids=lambda message: type(message).__name__,
)
def test_what_is_said_of_an_unknown_request_is_stale(message: object) -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert bench.give(A, message) == []
    assert bench.core.report() == DispatcherReport(running=1, stale_total=1)


def test_a_token_from_an_instance_that_does_not_hold_the_attempt_changes_nothing() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    assert target(bench.give(B, rows((1, 1, 3, 70))), Cancel) == [B]
    assert bench.core.journal.get(1) is not None
    assert list(bench.core.journal.get(1).tokens) == [5, 6, 7]  # type: ignore[union-attr]


def test_a_repeated_token_is_dropped_and_a_gap_ends_the_attempt() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)))
    assert bench.give(A, rows((1, 1, 3, 70))) == []
    sent = bench.give(A, rows((1, 1, 5, 72)))
    assert messages(sent, Delta) == []
    assert target(sent, Cancel) == [A]
    assert list(only(sent, Place).tokens) == [5, 6, 7, 70]
    assert bench.core.report().stale_total == 2


@pytest.mark.parametrize(
    "broken",
    [
        {"attempt": i32([1, 1])},
        {"top_count": i32([1, 1])},
        {"top_count": i32([1])},
        {"top_count": i32([-1])},
        {"top_token": i32([1])},
        {"logprob": f32()},
    ],
)
def test_columns_that_do_not_fit_are_dropped_whole(broken: dict[str, Any]) -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert bench.give(A, replace(rows((1, 1, 3, 70)), **broken)) == []
    assert bench.core.report() == DispatcherReport(running=1, stale_total=1)


def test_an_unknown_finish_is_dropped() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    batch = rows((1, 1, 3, 70))
    batch.finish[0] = 17
    assert bench.give(A, batch) == []


# --- refusals ---


def test_a_refusal_leaves_the_instance_alone_for_a_while() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit())
    assert bench.give(A, Refused(1, 1, Refusal.FULL)) == []
    assert bench.last == [After(0.05, RefusalPauseOver(A, 1))]
    assert messages(bench.give(client("d"), submit()), Place) == []
    sent = bench.fire(RefusalPauseOver)
    assert bench.now_s == 0.05
    assert [(place.request, place.attempt) for place in messages(sent, Place)] == [(1, 2), (2, 1)]


@pytest.mark.parametrize("by", ["view", "tokens", "ended", "another instance"])
def test_a_refused_request_is_dispatched_on_the_next_change(by: str) -> None:
    bench = Bench().fleet(member(A))
    bench.run("other")
    bench.give(client("c"), submit())
    bench.give(A, Refused(2, 1, Refusal.NOT_READY))
    if by == "another instance":
        bench.view(member(A), member(B, free_slots=1), base_version=0)
        bench.give(A, Refused(2, 2, Refusal.FULL))
    sent = {
        "view": lambda: bench.view(member(A), base_version=1),
        "tokens": lambda: bench.give(A, rows((1, 1, 3, 70))),
        "ended": lambda: bench.give(A, Ended(1, 1)),
        "another instance": lambda: bench.give(B, Joined()),
    }[by]()
    assert target(sent, Place) == [B if by == "another instance" else A]


def test_an_old_pause_ends_nothing() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit())
    bench.give(A, Refused(1, 1, Refusal.FULL))
    bench.view(member(A), base_version=1)
    bench.give(A, Refused(1, 2, Refusal.FULL))
    assert bench.fire(RefusalPauseOver) == []
    assert only(bench.fire(RefusalPauseOver), Place).attempt == 3


def test_what_an_instance_calls_too_long_goes_elsewhere_or_ends() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.give(client("c"), submit())
    assert target(bench.give(A, Refused(1, 1, Refusal.TOO_LONG)), Place) == [B]
    sent = bench.give(B, Refused(1, 2, Refusal.TOO_LONG))
    assert only(sent, Delta).finish is FinishReason.TOO_LONG
    assert "more than any instance can hold" in only(sent, Delta).detail


@pytest.mark.parametrize("policy", ["refuse", "group"])
def test_one_without_a_limit_goes_back_to_an_instance_that_has_less_than_the_view_says(policy: str) -> None:
    bench = Bench(placement__long_policy=policy).fleet(member(A))
    assert only(bench.give(client("c"), submit(max_tokens=None)), Place).max_tokens == 997
    again = bench.give(A, Refused(1, 1, Refusal.TOO_LONG, limit_tokens=800))
    assert target(again, Place) == [A]
    assert only(again, Place).max_tokens == 797
    assert target(bench.give(A, Refused(1, 2, Refusal.TOO_LONG, limit_tokens=0)), Place) == [], (
        "nor is it asked forever"
    )


def test_an_instance_that_grew_back_is_asked_again_by_what_it_once_refused() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.give(client("c"), submit(max_tokens=900))
    assert target(bench.give(A, Refused(1, 1, Refusal.TOO_LONG, limit_tokens=800)), Place) == [B]
    bench.view(member(A), base_version=1)
    assert target(bench.give(B, Returned(1, 2)), Place) == [A]


def test_one_without_a_limit_that_has_begun_keeps_what_its_first_instance_left_it() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", max_tokens=None)
    bench.give(A, rows((1, 1, 3, 70)))
    bench.give(B, Joined())
    bench.view(member(A, free_slots=50), member(B))
    bench.give(A, Gone("killed"))
    bench.fleet(member(A, free_slots=50), member(B))
    sent = bench.give(B, Refused(1, 2, Refusal.TOO_LONG, limit_tokens=800))
    assert (target(sent, Place), only(sent, Place).max_tokens) == ([A], 997)


def test_an_instance_that_refuses_what_it_says_it_holds_is_not_asked_again() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit())
    sent = bench.give(A, Refused(1, 1, Refusal.TOO_LONG, limit_tokens=7))
    assert (messages(sent, Place), only(sent, Delta).finish) == ([], FinishReason.TOO_LONG)


def test_a_refusal_of_what_runs_already_changes_nothing() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert bench.give(A, Refused(1, 1, Refusal.FULL)) == []
    assert bench.core.report() == DispatcherReport(running=1, stale_total=1)


def test_a_poisoned_request_ends_with_an_error_and_is_tried_nowhere_else() -> None:
    bench = Bench().fleet(member(A), member(B))
    place = bench.run("c")
    sent = bench.give(A, Poisoned(place.request, place.attempt, Why("poison", "it crashed 2 engines alone")))
    end = only(sent, Delta)
    assert end.finish is FinishReason.ERROR
    assert end.detail == f"poison request, stopped by {A.name}: it crashed 2 engines alone"
    assert not messages(sent, Place)
    assert not messages(sent, Cancel)
    assert bench.core.report() == DispatcherReport(failed_total=1)


def test_a_request_without_a_next_token_ends_with_an_error_and_is_tried_nowhere_else() -> None:
    bench = Bench().fleet(member(A), member(B))
    place = bench.run("c")
    assert bench.give(A, Failed(place.request, place.attempt + 1)) == []
    sent = bench.give(A, Failed(place.request, place.attempt, Why("engine", "the logits are not finite")))
    end = only(sent, Delta)
    assert (end.finish, end.detail) == (FinishReason.ERROR, f"{A.name} cannot go on: the logits are not finite")
    assert not messages(sent, Place)
    assert not messages(sent, Cancel)
    assert bench.core.report() == DispatcherReport(failed_total=1, stale_total=1)


def test_an_older_attempt_cannot_poison_its_request() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c")
    assert bench.give(A, Poisoned(place.request, place.attempt + 1)) == []
    assert bench.core.report() == DispatcherReport(running=1, stale_total=1)


def test_the_next_attempt_carries_the_suspicion_of_the_last() -> None:
    bench = Bench().fleet(member(A), member(B))
    place = bench.run("c")
    assert place.suspicion == 0
    assert only(bench.give(A, Returned(place.request, place.attempt, suspicion=2)), Place).suspicion == 2


def test_one_that_goes_back_after_a_crash_in_company_is_suspected_until_its_next_token() -> None:
    bench = Bench().fleet(member(A), member(B))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)))
    sent = bench.give(A, Returned(1, 1, suspicion=1))
    assert only(sent, Place).suspicion == 1
    (holder,) = target(sent, Place)
    bench.give(holder, rows((1, 2, 4, 71)))
    assert only(bench.give(holder, Gone("killed")), Place).suspicion == 0


@pytest.mark.parametrize(
    ("suspicion", "more", "left"), [(0, 1, 0), (1, 1, 1), (1, 2, 0), (2, 1, 2), (2, 2, 2)], ids=str
)
def test_what_is_suspected_at_an_instance_that_is_lost_is_suspected_at_the_next(
    suspicion: int, more: int, left: int
) -> None:
    """The engine crashed in the step after the first token; where the request was not alone in it, it is trusted once
    it is past that."""
    bench = Bench().fleet(member(A), member(B))
    place = bench.run("c")
    stop = len(place.tokens) + 1
    bench.give(A, Continued(1, 1, revived_tokens=2, suspicion=suspicion, trial_stop=stop))
    bench.give(A, rows(*((1, 1, len(place.tokens) + each, 70) for each in range(more))))
    assert only(bench.give(A, Gone()), Place).suspicion == left


def test_an_attempt_that_continues_in_a_new_engine_stays_current() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert bench.give(A, Continued(1, 1, revived_tokens=8)) == []
    assert state_of(bench, 1) is RequestState.RUNNING
    assert bench.core.report().stale_total == 0


def test_preempted_and_continued_change_the_state_and_nothing_else() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    for _ in range(2):  # the second time while it was being restored
        assert bench.give(A, Preempted(1, 1)) == []
        assert state_of(bench, 1) is RequestState.PREEMPTED
        assert bench.core.report().stale_total == 0
    assert bench.give(A, Continued(1, 1)) == []
    assert state_of(bench, 1) is RequestState.RUNNING
    bench.give(A, Preempted(1, 7))
    assert state_of(bench, 1) is RequestState.RUNNING
    assert bench.core.report().stale_total == 1


def test_tokens_before_the_accepted_message_count_as_accepted() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit())
    bench.give(A, rows((1, 1, 3, 70)))
    assert state_of(bench, 1) is RequestState.RUNNING
    assert bench.give(A, Refused(1, 1, Refusal.FULL)) == []
    assert bench.give(A, Accepted(1, 1, 9)) == []
    assert state_of(bench, 1) is RequestState.RUNNING


def test_a_new_stream_of_the_same_instance_gets_a_cancel_again() -> None:
    bench = Bench().fleet(member(A))
    assert target(bench.give(A, rows((77, 3, 5, 1))), Cancel) == [A]
    bench.give(A, Gone())
    assert target(bench.give(A, Joined()), Cancel) == [A]
    assert target(bench.give(A, rows((77, 3, 6, 1))), Cancel) == []


def test_tokens_of_steps_queued_before_a_preemption_do_not_end_it() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.give(A, Preempted(1, 1))
    assert len(messages(bench.give(A, rows((1, 1, 3, 70))), Delta)) == 1
    assert state_of(bench, 1) is RequestState.PREEMPTED
    bench.give(A, Continued(1, 1))
    assert state_of(bench, 1) is RequestState.RUNNING
    assert bench.core.report().stale_total == 0


def test_what_an_instance_finds_invalid_ends_with_its_reason() -> None:
    bench = Bench().fleet(member(A), member(B))
    place = only(bench.give(client("c"), submit()), Place)
    why = Why("admission", "refuse: INVALID", (), (RejectedOption("accept", "the model has no such token"),))
    sent = bench.give(A, Refused(place.request, place.attempt, Refusal.INVALID, why))
    delta = only(sent, Delta)
    assert (delta.finish, delta.detail) == (FinishReason.ERROR, "a cannot run it: the model has no such token")
    assert messages(sent, Place) == []


def test_an_older_monitor_is_believed_once_the_newer_one_is_gone() -> None:
    bench = Bench().fleet(member(A))
    newer = MONITOR._replace(incarnation=MONITOR.incarnation + 1)
    bench.give(newer, FleetView(1, (member(A),)))
    bench.run("c")
    stale = bench.core.report().stale_total
    suspicion = FleetView(9, (member(A, suspect=True),))
    bench.give(MONITOR, suspicion)
    assert bench.core.report().stale_total == stale + 1
    bench.give(newer, Gone("killed"))
    bench.give(MONITOR, suspicion)
    assert bench.core.report().replaced_total == 1


def test_a_token_of_an_older_attempt_at_the_same_instance_is_not_the_requests() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)))
    bench.give(A, Returned(1, 1))
    bench.give(A, Accepted(1, 2, 1))
    bench.give(A, rows((1, 2, 4, 71)))
    bench.give(A, rows((1, 1, 5, 99)))
    request = bench.core.journal.get(1)
    assert request is not None
    assert list(request.tokens) == [5, 6, 7, 70, 71]
    bench.give(A, rows((1, 2, 5, 72)))
    assert list(request.tokens)[-1] == 72
