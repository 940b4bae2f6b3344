"""Completion in the core: lost attempts are followed by new ones, until too many were lost in a row."""

from dunlin.effects import Gone, Joined, Send
from dunlin.messages.dispatch import (
    Place,
    Refusal,
    Refused,
    Returned,
)
from dunlin.messages.door import (
    Delta,
)
from dunlin.messages.fleet import DispatcherReport
from dunlin.messages.types import FinishReason, i32
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
    assert "3 lost attempts" in delta.detail
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
