"""Completion in the core: lost attempts are followed by new ones, until too many were lost in a row."""

from dunlin.effects import Gone, Joined, Send
from dunlin.messages.dispatch import (
    Cancel,
    Place,
    Ready,
    Refusal,
    Refused,
    Returned,
)
from dunlin.messages.door import (
    Abort,
    Delta,
)
from dunlin.messages.fleet import DispatcherReport
from dunlin.messages.types import FinishReason, RequestClass, Why, i32
from services.dispatcher.requests.timers import RefusalPauseOver
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


def test_a_lost_instance_costs_a_new_attempt_with_the_tokens_so_far() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    place = bench.run("c")
    bench.give(A, rows((1, 1, 3, 70), (1, 1, 4, 71)))
    sent = bench.give(A, Gone("stream reset"))
    assert target(sent, Place) == [B]
    again = only(sent, Place)
    assert (again.attempt, list(again.tokens), again.prompt_tokens) == (2, [5, 6, 7, 70, 71], 3)
    assert (again.max_tokens, again.sampling) == (place.max_tokens, place.sampling)
    assert again.why is not None
    assert (again.why.rejected[0].option, again.why.rejected[0].reason) == (str(A), "lost: stream reset")
    assert messages(sent, Delta) == []
    assert bench.give(B, rows((1, 2, 5, 72))) == [Send(client("c"), Delta(i32([72])))]
    assert bench.core.report().replaced_total == 1


def test_lost_requests_go_first_oldest_first() -> None:
    bench = Bench(placement__max_waiting_per_instance=1).fleet(member(A))
    for name in range(3):
        bench.run(name)
    bench.give(A, Gone())
    bench.give(client("new"), submit())
    bench.give(B, Joined())
    sent = bench.view(member(B, free_slots=500))
    assert [(place.request, place.attempt) for place in messages(sent, Place)] == [(1, 2), (2, 2), (3, 2), (4, 1)]


def test_a_request_that_loses_too_often_ends_with_an_error() -> None:
    bench = Bench(placement__max_lost_attempts=3).fleet(member(A))
    bench.run("c")
    for attempt in (1, 2):
        assert messages(bench.give(A, Returned(1, attempt)), Delta) == []
    delta = only(bench.give(A, Returned(1, 3)), Delta)
    assert (delta.finish, list(delta.tokens)) == (FinishReason.ERROR, [])
    assert delta.detail == "given up after 3 lost attempts; the last was returned: no reason given"
    assert bench.core.report() == DispatcherReport(failed_total=1, replaced_total=3)


def test_a_refused_request_does_not_count_as_lost() -> None:
    bench = Bench(placement__max_lost_attempts=1).fleet(member(A))
    bench.give(client("c"), submit())
    for attempt in range(1, 30):
        bench.give(A, Refused(1, attempt, Refusal.FULL))
        bench.fire(RefusalPauseOver)
    assert bench.core.report() == DispatcherReport(running=1)


def test_only_losses_in_a_row_count_against_a_request() -> None:
    bench = Bench(placement__max_lost_attempts=2).fleet(member(A), member(B))
    bench.run("c")
    holder, position = A, 3
    for attempt in range(1, 6):
        bench.give(holder, rows((1, attempt, position, 70)))
        sent = bench.give(holder, Returned(1, attempt))
        assert messages(sent, Delta) == []
        (holder,) = target(sent, Place)
        position += 1
    (ended,) = messages(bench.give(holder, Returned(1, 6)), Delta)
    assert ended.finish is FinishReason.ERROR
    assert "2 lost attempts" in ended.detail


def test_an_end_before_a_migrations_target_accepts_is_told_to_source_and_target() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)))
    bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    sent = bench.give(client("c"), Abort())
    assert [(each.to, each.message.attempt) for each in sent if isinstance(each.message, Cancel)] == [(B, 2), (A, 1)]


def interval_s(bench: Bench) -> float:
    """Seconds between two ends under load, as the queue's pace is measured; 0: not known."""
    return bench.core._admission.wait_estimate.interval_s


def queueing(request_class: RequestClass = RequestClass.INTERACTIVE) -> Bench:
    """Two requests run, and two wait in the queue: the instance, where none waits, has refused one."""
    bench = Bench().fleet(member(A))
    for name in "cd":
        bench.run(name, request_class=request_class)
    bench.give(client("e"), submit(request_class=request_class))
    bench.give(A, Refused(3, 1, Refusal.FULL))
    bench.give(client("f"), submit(request_class=request_class))
    assert bench.core.report().queued == 2
    return bench


def test_requests_that_wait_in_the_queue_make_the_time_between_two_ends_count() -> None:
    bench = queueing()
    for name, at_s in (("c", 10.0), ("d", 12.0)):
        bench.give(client(name), Abort(FinishReason.STOP), at_s)
    assert interval_s(bench) == 2.0


def test_batch_requests_say_nothing_of_the_pace_of_interactive_ones() -> None:
    bench = queueing(RequestClass.BATCH)
    for name, at_s in (("c", 10.0), ("d", 12.0)):
        bench.give(client(name), Abort(FinishReason.STOP), at_s)
    assert interval_s(bench) == 0.0


def test_requests_that_leave_the_queue_say_nothing_of_its_pace() -> None:
    bench = Bench()
    for name in "cde":
        bench.give(client(name), submit())
    for name, at_s in (("c", 10.0), ("d", 12.0)):
        bench.give(client(name), Abort(), at_s)
    assert interval_s(bench) == 0.0


def test_ends_while_none_waits_say_nothing_of_a_pace() -> None:
    bench = Bench().fleet(member(A))
    for name, at_s in (("c", 10.0), ("d", 12.0)):
        bench.run(name)
        bench.give(client(name), Abort(FinishReason.STOP), at_s)
    assert interval_s(bench) == 0.0


def test_the_next_attempt_says_what_became_of_the_last() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    returned = only(bench.give(A, Returned(1, 1, Why("engine lost", "it crashed"))), Place)
    bench.give(A, Gone())
    lost = only(bench.give(A, Joined()), Place)
    reasons = [place.why.rejected[0].reason for place in (returned, lost) if place.why is not None]
    assert reasons == ["returned: it crashed", "lost: the stream ended"]
