"""Crashes of engines that a dispatcher hears of when the attempt is over already."""

import pytest

from dunlin.effects import Gone
from dunlin.messages.dispatch import Cancel, Continued, Place, Preempted, Returned, Suspected
from dunlin.messages.door import Delta
from dunlin.messages.types import FinishReason
from tests.services.dispatcher.factories import A, B, Bench, member, messages, only, rows

PROMPT = 3
"""Tokens of the request's prompt."""


def returned_once() -> Bench:
    """A request whose first attempt went back, suspected of nothing; the second, at B, has the first token."""
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.fleet(member(B))
    assert only(bench.give(A, Returned(1, 1)), Place).suspicion == 0
    bench.give(B, rows((1, 2, PROMPT, 70)))
    return bench


@pytest.mark.parametrize(("is_alone", "suspicion"), [(True, 2), (False, 1)])
def test_the_next_attempt_is_suspected(is_alone: bool, suspicion: int) -> None:
    bench = returned_once()
    assert bench.give(A, Suspected(1, 1, is_alone)) == [], "the attempt under way goes on"
    assert only(bench.give(B, Returned(1, 2)), Place).suspicion == suspicion


def test_one_that_crashed_in_company_is_trusted_once_it_is_past_that() -> None:
    bench = returned_once()
    bench.give(A, Suspected(1, 1, False))
    bench.give(B, rows((1, 2, PROMPT + 1, 71)))
    request = bench.core.journal.get(1)
    assert request is not None
    assert (len(request.tokens), request.suspicion_left) == (PROMPT + 2, 0)
    bench.give(A, Suspected(1, 2, True))
    bench.give(B, rows((1, 2, PROMPT + 2, 72)))
    assert request.suspicion_left == 2, "crashes alone stay counted"


def test_what_the_attempt_under_way_says_of_itself_changes_nothing() -> None:
    bench = returned_once()
    bench.give(A, Suspected(1, 1, False))
    bench.give(B, Preempted(1, 2))
    bench.give(B, Continued(1, 2))
    bench.give(B, Gone())
    assert only(bench.view(member(A)), Place).suspicion == 1, "a preemption clears nothing"


def test_one_that_is_past_its_crash_stays_trusted_when_it_goes_back() -> None:
    bench = returned_once()
    bench.give(A, Suspected(1, 1, False))
    bench.give(B, rows((1, 2, PROMPT + 1, 71)))
    assert only(bench.give(B, Returned(1, 2)), Place).suspicion == 0


def test_engines_that_one_attempt_crashed_count_once() -> None:
    bench = returned_once()
    bench.give(A, Suspected(1, 1, True))
    assert bench.give(B, Suspected(1, 1, True)) == []
    request = bench.core.journal.get(1)
    assert request is not None
    assert request.suspicion_left == 2


def test_what_an_instance_knows_of_an_attempt_counts_beside_it() -> None:
    bench = returned_once()
    bench.give(B, Returned(1, 2, suspicion=2))
    request = bench.core.journal.get(1)
    assert request is not None
    assert bench.give(B, Suspected(1, 2, False)) == []
    assert request.suspicion_left == 2


def test_the_second_that_it_crashes_alone_ends_it_wherever_it_runs() -> None:
    bench = returned_once()
    bench.give(A, Suspected(1, 1, True))
    sent = bench.give(A, Suspected(1, 2, True))
    end = only(sent, Delta)
    assert end.finish is FinishReason.ERROR
    assert end.detail.startswith("poison request, stopped by its dispatcher")
    assert [(each.request, each.attempt) for each in messages(sent, Cancel)] == [(1, 2)]
    assert len(bench.core.journal) == 0


@pytest.mark.parametrize(("request_number", "attempt"), [(2, 1), (1, 3), (1, 0)])
def test_an_attempt_that_is_not_known_is_stale(request_number: int, attempt: int) -> None:
    bench = returned_once()
    stale = bench.core.report().stale_total
    assert bench.give(A, Suspected(request_number, attempt, True)) == []
    assert bench.core.report().stale_total == stale + 1
    request = bench.core.journal.get(1)
    assert request is not None
    assert request.suspicion_left == 0


def test_a_crash_that_an_instance_counted_and_one_that_is_told_late_end_it_together() -> None:
    bench = returned_once()
    assert only(bench.give(B, Returned(1, 2, suspicion=2)), Place).suspicion == 2
    assert only(bench.give(A, Suspected(1, 2, True)), Delta).finish is FinishReason.ERROR


def test_a_crash_alone_that_is_told_late_outweighs_one_in_company() -> None:
    bench = returned_once()
    bench.give(B, Returned(1, 2, suspicion=1))
    bench.give(A, Suspected(1, 2, True))
    request = bench.core.journal.get(1)
    assert request is not None
    assert request.suspicion_left == 2
