"""Log-probabilities of prompts on their way through the dispatcher: each token's once, in order, whatever is lost."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Gone, Send
from dunlin.messages.dispatch import (
    Accepted,
    Adopt,
    Adopted,
    Cancel,
    NotHeld,
    Place,
    PromptScored,
    Refusal,
    Refused,
    Reused,
)
from dunlin.messages.door import Admitted, Delta, PromptLogprobs, RejectionCode, SubmitRejected
from dunlin.messages.fleet import DispatcherReport
from dunlin.messages.types import FinishReason, SamplingParams, f32, i32
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, rows, submit

PROMPT = [5, 6, 7, 8, 9]
WANTED: dict[str, Any] = {"tokens": PROMPT, "sampling": SamplingParams(prompt_logprobs=1)}


def columns(start: int, stop: int) -> PromptLogprobs:
    """What is said of tokens `[start, stop)` of every prompt here."""
    span = range(start, stop)
    tops = i32([100 + token for token in span]), f32([-0.5 * token for token in span])
    return PromptLogprobs(1, f32([-float(token) for token in span]), i32(span), *tops)


def scored(start: int, stop: int, attempt: int = 1, request: int = 1) -> PromptScored:
    part = columns(start, stop)
    return PromptScored(request, attempt, start, 1, part.logprob, part.rank, part.top_token, part.top_logprob)


def told(sent: list[Send]) -> list[PromptLogprobs | None]:
    return [delta.prompt for delta in messages(sent, Delta)]


def test_they_go_to_the_reader_as_they_come_and_before_the_first_token() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", **WANTED)
    assert (place.scored, place.sampling.prompt_logprobs) == (0, 1)
    assert told(bench.give(A, scored(1, 3))) == [columns(1, 3)]
    assert told(bench.give(A, scored(3, 5))) == [columns(3, 5)]
    (delta,) = messages(bench.give(A, rows((1, 1, 5, 70))), Delta)
    assert (list(delta.tokens), delta.prompt) == ([70], None)


def test_the_next_attempt_goes_on_after_those_that_came() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c", **WANTED)
    bench.give(A, scored(1, 3))
    place = only(bench.give(A, Gone("killed")), Place)
    assert (place.attempt, place.scored) == (2, 2)
    assert told(bench.give(A, scored(3, 5))) == [], "of an attempt that is over"
    # Computed anew from where its KV was trusted: what is known is not told twice.
    assert told(bench.give(B, scored(2, 5, attempt=2))) == [columns(3, 5)]
    assert told(bench.give(B, scored(2, 5, attempt=2))) == []
    assert bench.core.report().stale_total == 2
    assert told(bench.give(B, rows((1, 2, 5, 70)))) == [None]


@pytest.mark.parametrize(
    "late", [scored(4, 5), rows((1, 1, 5, 70))], ids=["a part is missing", "the token comes before the rest"]
)
def test_after_a_gap_the_attempt_is_over(late: Any) -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", **WANTED)
    bench.give(A, scored(1, 3))
    sent = bench.give(A, late)
    assert [(cancel.request, cancel.attempt) for cancel in messages(sent, Cancel)] == [(1, 1)]
    assert [(place.attempt, place.scored, list(place.tokens)) for place in messages(sent, Place)] == [(2, 2, PROMPT)]
    assert messages(sent, Delta) == []


def test_columns_that_do_not_fit_and_those_that_nobody_wants_are_dropped() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", **WANTED)
    part = columns(1, 3)
    broken = PromptScored(1, 1, 1, 1, part.logprob, part.rank, part.top_token, f32([-1.0]))
    assert bench.give(A, broken) == []
    assert bench.give(A, replace(broken, start=0, top_logprob=part.top_logprob)) == [], "the first token has none"
    bench.run("d")
    assert bench.give(A, scored(1, 3, request=2)) == []
    assert bench.core.report().stale_total == 3


def test_who_joins_gets_all_of_them_and_who_resumes_those_that_it_lacks() -> None:
    bench = Bench().fleet(member(A))
    name: dict[str, Any] = {"idempotency": "n/0", "digest": b"d"}
    query = only(bench.give(client("c"), submit(**WANTED, **name)), Adopt)
    place = only(bench.give(A, NotHeld(query.request, query.attempt)), Place)
    bench.give(A, Accepted(place.request, place.attempt, 1))
    bench.give(A, scored(1, 4, place.attempt))
    joined = bench.give(client("late"), submit(**WANTED, **name))
    key = only(joined, Admitted).request
    assert told(joined) == [columns(1, 4)]
    assert told(bench.give(client("again"), submit(**WANTED, **name, key=key, scored=2))) == [columns(3, 4)]
    assert len(told(bench.give(A, scored(4, 5, place.attempt)))) == 3


def test_who_resumes_elsewhere_says_what_it_has() -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(client("c"), submit(**WANTED, key="req-9-1", scored=2))
    query = only(sent, Adopt)
    assert query.scored == 2
    bench.give(A, Adopted(query.request, query.attempt, "req-9-1", i32(), 4))
    assert told(bench.give(A, scored(3, 5, query.attempt))) == [columns(3, 5)]
    # Another client of it that has fewer cannot be told the first ones.
    sent = bench.give(client("d"), submit(**WANTED, key="req-9-1", scored=1))
    assert only(sent, SubmitRejected).code is RejectionCode.CONFLICT


def test_a_prompt_that_needs_a_group_is_refused_by_name() -> None:
    bench = Bench(placement__long_policy="group").fleet(member(A, capacity_slots=40), member(B, capacity_slots=40))
    long = list(range(50))
    refused = only(bench.give(client("c"), submit(long, sampling=SamplingParams(prompt_logprobs=0))), SubmitRejected)
    assert (refused.code, refused.field) == (RejectionCode.TOO_LONG, "prompt_logprobs")
    assert messages(bench.give(client("d"), submit(long)), SubmitRejected) == []


def test_a_long_prompt_that_fits_one_instance_goes_there_alone() -> None:
    bench = Bench(placement__long_policy="group", placement__long_tokens=3).fleet(member(A))
    place = only(bench.give(client("c"), submit(**WANTED)), Place)
    assert place.group == 0


def test_what_is_told_of_the_prompt_before_the_accepted_message_counts_as_accepted() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit(**WANTED))
    bench.give(A, Reused(1, 1, 2))
    (delta,) = messages(bench.give(A, scored(1, 3)), Delta)
    assert (delta.prompt, delta.cached_tokens) == (columns(1, 3), 2)
    assert bench.give(A, Refused(1, 1, Refusal.FULL)) == []
    assert bench.core.report() == DispatcherReport(running=1, stale_total=1), "it runs already"


def test_a_client_that_has_more_of_them_than_what_runs_here_resumed_it_elsewhere() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", **WANTED)
    bench.give(A, scored(1, 3))
    sent = bench.give(client("d"), submit(**WANTED, key=place.key, scored=3))
    assert only(sent, Delta).finish is FinishReason.CANCELLED
    assert only(sent, Adopt).scored == 3
