"""Batch requests in the dispatcher's queue rise: when, how many, and what becomes of them."""

from typing import Any

from dunlin.effects import Gone, Joined
from dunlin.messages.dispatch import Accepted, Place, Refusal, Refused
from dunlin.messages.lifecycle import RisenInQueue
from dunlin.messages.types import Figure, RequestClass
from services.dispatcher.requests.request import Request
from tests.services.dispatcher.factories import MONITOR, A, B, Bench, client, member, messages, only, rows, submit

BATCH = RequestClass.BATCH
FULL: dict[str, Any] = {"free_slots": 0, "waiting": 16, "batch_waiting": 16}
"""An instance that takes no more batch requests, and interactive ones as many as wait nowhere."""


def starving(wait_s: float = 8.0, share: float = 0.5, **settings: Any) -> Bench:
    """A dispatcher with an instance that is full of batch work, whose queue takes two interactive requests."""
    settings = {"starvation__batch_wait_s": wait_s, "starvation__risen_share": share, **settings}
    return Bench(placement__max_waiting_per_instance=2, **settings).fleet(member(A, **FULL))


def request_of(bench: Bench, name: object) -> Request:
    found = bench.core.journal.by_reader(client(name))
    assert found is not None
    return found


def test_one_that_waited_too_long_goes_where_an_interactive_one_would_and_before_it() -> None:
    bench = starving()
    assert messages(bench.give(client("b"), submit(request_class=BATCH)), Place) == []
    bench.give(client("c0"), submit(), 1.0)
    bench.give(client("c1"), submit())
    waiting = bench.give(client("c2"), submit(), 7.9)
    assert messages(waiting, Place) == [], "two wait at the instance"
    sent = bench.give(A, Refused(2, 1, Refusal.FULL), 9.0)  # the look that finds it, and no room yet
    assert messages(sent, RisenInQueue)[0].request == request_of(bench, "b").key
    sent = bench.view(member(A, **FULL), base_version=1)
    place = messages(sent, Place)[0]
    assert (place.request, place.request_class, place.may_preempt, place.rises_after_s) == (1, BATCH, False, 0.0)
    assert bench.core.report().risen_total == 1


def test_the_reason_is_told_and_names_the_bound() -> None:
    bench = starving()
    bench.give(client("b"), submit(request_class=BATCH))
    told = only(bench.give(MONITOR, Joined(), 8.0), RisenInQueue)
    assert told.why is not None
    assert {figure.name: figure.value for figure in told.why.figures} == {"stalled_s": 8.0, "risen": 0, "most_risen": 1}


def test_the_share_of_the_dispatched_is_kept_and_the_next_rises_when_one_has_ended() -> None:
    bench = starving()
    for number in range(3):
        bench.give(client(number), submit(request_class=BATCH))
    placed = messages(bench.give(MONITOR, Joined(), 8.0), Place)
    assert [place.request for place in placed] == [1]
    bench.give(A, Accepted(1, 1, 1), 60.0)
    assert [request_of(bench, number).is_risen for number in range(3)] == [True, False, False]
    bench.give(client(0), Gone(), 61.0)
    bench.give(MONITOR, Joined(), 62.1)
    assert [request_of(bench, number).is_risen for number in (1, 2)] == [True, False]


def after_four(batch: int) -> Bench:
    """So many batch requests wait for full instances, to which four interactive ones were dispatched."""
    bench = starving().fleet(member(B))
    for number in range(4):
        bench.run(f"c{number}", B)
    bench.view(member(A, **FULL), member(B, **FULL))
    for number in range(batch):
        bench.give(client(f"b{number}"), submit(request_class=BATCH))
    return bench


def test_more_rise_where_more_are_dispatched() -> None:
    bench = after_four(batch=3)
    bench.give(MONITOR, Joined(), 8.0)
    assert [request_of(bench, f"b{number}").is_risen for number in range(3)] == [True, True, False]


def test_a_token_starts_the_clock_anew_and_an_attempt_without_one_does_not() -> None:
    bench = starving().fleet(member(B))
    for number in range(2):
        bench.give(client(number), submit(request_class=BATCH))
        bench.give(B, Accepted(number + 1, 1, number + 1))
    bench.give(B, rows((1, 1, 3, 7)), 7.0)
    bench.give(B, Gone("killed"), 7.5)
    bench.give(MONITOR, Joined(), 9.0)
    assert [request_of(bench, number).is_risen for number in range(2)] == [False, True]
    bench.give(client(1), Gone(), 10.0)
    bench.give(MONITOR, Joined(), 14.9)
    assert not request_of(bench, 0).is_risen
    bench.give(MONITOR, Joined(), 17.1)
    assert request_of(bench, 0).is_risen


def test_its_reservation_is_that_of_an_interactive_request() -> None:
    bench = starving()
    bench.give(client("b"), submit(request_class=BATCH))
    bench.give(MONITOR, Joined(), 8.0)
    state = bench.core.fleet._connected[A]
    assert (state.reserved_tokens[RequestClass.INTERACTIVE], state.reserved_tokens[BATCH]) == (3, 0)


def test_one_that_rose_stays_so_when_its_instance_is_lost() -> None:
    bench = starving()
    bench.give(client("b"), submit(request_class=BATCH))
    bench.give(MONITOR, Joined(), 8.0)
    bench.give(A, Accepted(1, 1, 1))
    bench.give(A, Gone("killed"), 9.0)
    bench.give(client("c"), submit())
    bench.give(B, Joined())
    placed = messages(bench.view(member(B)), Place)
    assert [(place.request, place.attempt, place.rises_after_s) for place in placed] == [(1, 2, 0.0), (2, 1, None)]


def test_interactive_requests_never_rise_and_none_does_where_the_bound_is_off() -> None:
    bench = starving(wait_s=0.0)
    bench.give(client("b"), submit(request_class=BATCH))
    for number in range(3):
        bench.give(client(number), submit())
    bench.give(MONITOR, Joined(), 1e6)
    assert not any(request.is_risen for request in bench.core.journal)


def test_the_end_of_a_completion_window_lets_it_rise_without_the_bound() -> None:
    bench = starving(wait_s=0.0)
    bench.give(client("b"), submit(request_class=BATCH, rises_after_s=3.0))
    bench.give(MONITOR, Joined(), 2.0)
    assert not request_of(bench, "b").is_risen
    told = only(bench.give(MONITOR, Joined(), 3.1), RisenInQueue)
    assert told.why is not None
    assert "completion window" in told.why.rejected[0].reason


def test_an_instance_is_told_when_a_line_is_to_rise() -> None:
    bench = starving().fleet(member(B))
    bench.now_s = 5.0
    placed = only(bench.give(client("b"), submit(request_class=BATCH, rises_after_s=3.0)), Place)
    assert placed.rises_after_s == 3.0
    bench.give(B, Accepted(1, 1, 1))
    bench.give(B, Gone("killed"), 6.0)
    assert only(bench.give(B, Joined()), Place).rises_after_s == 2.0


def test_the_queue_is_looked_through_at_intervals() -> None:
    bench = starving(wait_s=8.0)
    bench.give(client("b"), submit(request_class=BATCH))
    bench.give(MONITOR, Joined(), 7.9)
    bench.give(MONITOR, Joined(), 8.1)
    assert not request_of(bench, "b").is_risen
    bench.give(MONITOR, Joined(), 8.9)
    assert request_of(bench, "b").is_risen


def test_of_two_that_rise_together_the_second_is_told_of_the_first() -> None:
    bench = after_four(batch=2)
    told = messages(bench.give(MONITOR, Joined(), 8.0), RisenInQueue)
    assert [one.why.figures[1] for one in told if one.why is not None] == [Figure("risen", 0), Figure("risen", 1)]


def test_the_end_of_a_completion_window_lets_one_rise_that_has_tokens_already() -> None:
    bench = starving(wait_s=0.0).fleet(member(B))
    bench.give(client("b"), submit(request_class=BATCH, rises_after_s=3.0))
    bench.give(B, rows((1, 1, 3, 70)), 1.0)
    bench.give(B, Gone("killed"), 2.0)
    assert only(bench.give(MONITOR, Joined(), 3.1), RisenInQueue).request == request_of(bench, "b").key
