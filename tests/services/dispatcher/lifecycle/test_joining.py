"""Joining in the core: a retry reads the request that runs, within bounds, and cuts off no other reader."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Send
from dunlin.messages.dispatch import Adopt, AdoptedElsewhere, Cancel, NotHeld, Reused, Tokens
from dunlin.messages.door import Abort, Delta, RejectionCode, SubmitRejected
from dunlin.messages.lifecycle import Admitted
from dunlin.messages.types import FinishReason, SamplingParams, f32, i32
from services.dispatcher.requests.timers import AdoptionQueryRetry
from tests.services.dispatcher.adoption_factories import KEY, Bench, adopted, named
from tests.services.dispatcher.factories import A, client, member, messages, only, rows, submit


def test_a_reader_that_gets_tokens_during_the_query_gets_the_id_first() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named(key=KEY, received=i32([70, 71])))
    sent = bench.give(client("d"), named())
    assert sent == [Send(client("d"), Admitted(KEY)), Send(client("d"), Delta(i32([70, 71])))]


def test_a_reader_that_joins_before_a_request_is_adopted_back_gets_the_id() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(A, AdoptedElsewhere(1, 2, Address("dispatcher", "e", 5)))
    sent = bench.give(client("d"), named())
    assert sent == [Send(client("d"), Admitted("req-2a-1")), Send(client("d"), Delta(i32()))]
    again = only(bench.fire(AdoptionQueryRetry), Adopt)
    bench.give(A, adopted(70, attempt=again.attempt, key="req-2a-1"))
    request = bench.core.journal.get(1)
    assert request is not None
    assert request.key == "req-2a-1"


def test_readers_of_one_request_are_bounded() -> None:
    bench = Bench().fleet(member(A))
    for number in range(16):
        bench.give(client(number), named())
    assert only(bench.give(client("one too many"), named()), SubmitRejected).code is RejectionCode.FULL


def test_the_readers_that_an_answer_had_keep_none_from_getting_it_again() -> None:
    bench = Bench().fleet(member(A))
    for number in range(16):
        bench.give(client(number), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(A, rows((1, 2, 3, 70), finish=FinishReason.LENGTH))
    again = bench.give(client("one more"), named())
    assert only(again, Delta) == Delta(i32([70]), finish=FinishReason.LENGTH)


def test_a_key_under_a_new_name_is_still_the_request_that_runs() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", A)
    request = bench.core.journal.get(1)
    assert request is not None
    again = submit(key=request.key, idempotency="new/0", digest=b"d")
    assert only(bench.give(client("d"), again), SubmitRejected).code is RejectionCode.CONFLICT
    assert len(bench.core.journal) == 1
    bench.core.journal.check_integrity()


def test_a_reader_that_is_ahead_does_not_cut_off_the_others() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit(idempotency="n/0", digest=b"d"))
    bench.give(A, NotHeld(1, 1))
    request = bench.core.journal.get(1)
    assert request is not None
    ahead = submit(idempotency="n/0", digest=b"d", key=request.key, received=i32([70]))
    (answer,) = bench.give(client("d"), ahead)
    rejected = only([answer], SubmitRejected)
    assert (rejected.code, rejected.retry_after_s) == (RejectionCode.UNAVAILABLE, 0.5)
    assert request.readers == [client("c")]
    assert len(bench.core.journal) == 1


def test_a_client_that_is_ahead_takes_no_other_requests_id() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit())
    bench.give(client("d"), submit(idempotency="n/0", digest=b"d"))
    bench.give(A, NotHeld(2, 1))
    bench.give(client("d"), Abort())
    other, waiting = bench.core.journal.get(1), bench.core.journal.get(2)
    assert other is not None
    ahead = submit(idempotency="n/0", digest=b"d", key=other.key, received=i32([70]))
    assert only(bench.give(client("e"), ahead), SubmitRejected).code is RejectionCode.UNAVAILABLE
    assert bench.core.journal.by_key(other.key) is other
    assert bench.core.journal.get(2) is waiting
    bench.core.journal.check_integrity()


def test_a_stop_string_of_one_reader_ends_nothing_for_another() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", A)
    request = bench.core.journal.get(1)
    assert request is not None
    bench.give(client("d"), submit(key=request.key))
    assert bench.give(client("c"), Abort(FinishReason.STOP)) == []
    assert bench.give(A, rows((1, 1, 3, 70))) == [Send(client("d"), Delta(i32([70])))]
    assert only(bench.give(client("d"), Abort(FinishReason.STOP)), Cancel).request == 1
    assert len(bench.core.journal) == 0


@pytest.mark.parametrize("key", ["req-2a-1", "req-7-9"], ids=["the id here", "another dispatcher's"])
def test_what_is_behind_its_client_and_has_no_other_reader_gives_way_under_its_name_too(key: str) -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(client("c"), Gone("left"))
    sent = bench.give(client("c'"), named(key=key, received=i32([70])))
    assert [(cancel.request, cancel.attempt) for cancel in messages(sent, Cancel)] == [(1, 2)]
    adopt = only(sent, Adopt)
    assert (adopt.request, adopt.key, adopt.idempotency, adopt.received) == (2, key, "k/0", 1)
    assert len(bench.core.journal) == 1


SCORED: dict[str, Any] = {"sampling": SamplingParams(logprobs=2)}


def with_tops(position: int, token: int, *tops: int) -> Tokens:
    """A row of request 1 with these likeliest tokens, each of a log-probability of its own."""
    batch = rows((1, 1, position, token))
    return replace(batch, top_count=i32([len(tops)]), top_token=i32(tops), top_logprob=f32([-top / 2 for top in tops]))


@pytest.mark.parametrize("received", [0, 1])
def test_a_reader_that_joins_gets_the_log_probabilities_of_the_tokens_that_it_lacks(received: int) -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", **SCORED)
    bench.give(A, with_tops(3, 70, 70, 1))
    bench.give(A, with_tops(4, 71, 71))
    joined = submit(key=place.key, received=i32([70, 71][:received]), **SCORED)
    delta = only(bench.give(client("d"), joined), Delta)
    counts, tops = ([2, 1], [70, 1, 71]) if received == 0 else ([1], [71])
    assert list(delta.tokens) == [70, 71][received:]
    assert len(delta.logprobs) == 2 - received
    assert (list(delta.top_count), list(delta.top_token)) == (counts, tops)
    assert list(delta.top_logprob) == [-top / 2 for top in tops]


def test_log_probabilities_of_tokens_that_came_elsewhere_are_for_no_one_who_lacks_them() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit(key=KEY, received=i32([70, 71]), **SCORED))
    bench.give(A, adopted(max_tokens=4))
    lacking = submit(key=KEY, received=i32([70]), **SCORED)
    assert only(bench.give(client("d"), lacking), SubmitRejected).code is RejectionCode.CONFLICT
    has_all = submit(key=KEY, received=i32([70, 71]), **SCORED)
    assert only(bench.give(client("e"), has_all), Delta) == Delta(i32())


@pytest.mark.parametrize("wanted", [{}, SCORED], ids=["tokens alone", "log-probabilities"])
def test_a_reader_that_joins_hears_what_the_prompt_found_in_the_cache(wanted: dict[str, Any]) -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", **wanted)
    bench.give(A, Reused(1, 1, 2))
    assert only(bench.give(client("d"), submit(key=place.key, **wanted)), Delta).cached_tokens == 2


def test_a_name_with_the_id_of_another_request_gets_nothing_that_its_tokens_did_not_begin() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(A, rows((1, 2, 3, 70)))
    other = named(key="req-9-9", received=i32([99]))
    assert only(bench.give(client("d"), other), SubmitRejected).code is RejectionCode.INVALID
