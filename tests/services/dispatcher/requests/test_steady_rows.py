"""Tokens of the rows that the step before had: as if each row were looked at, and one effect."""

from collections.abc import Callable
from typing import Any

import pytest

from dunlin.effects import Gone, SendEach, sends
from dunlin.messages.dispatch import Cancel, Preempted, Returned, Reused
from dunlin.messages.door import Delta
from dunlin.messages.types import FinishReason, i32
from tests.services.dispatcher.factories import A, Bench, client, member, messages, only, rows, submit


def decoding(most: int = 10, **config: Any) -> Bench:
    """Requests 1 and 2 at A, which have two tokens each, of two steps with the same rows."""
    bench = Bench(**config).fleet(member(A))
    for name in ("c", "d"):
        bench.run(name, max_tokens=most)
    for position in (3, 4):
        bench.give(A, rows((1, 1, position, 10 + position), (2, 1, position, 20 + position)))
    return bench


def tokens_of(bench: Bench, number: int) -> list[int]:
    request = bench.core.journal.get(number)
    assert request is not None
    return list(request.tokens)


def test_a_step_with_the_rows_of_the_one_before_is_one_effect() -> None:
    bench = decoding()
    rows_before = bench.core.journal.steady_rows(A)
    assert rows_before is not None
    bench.give(A, rows((1, 1, 5, 15), (2, 1, 5, 25)), 3.0)
    deltas = [Delta(i32([15])), Delta(i32([25]))]
    assert bench.last == [SendEach([client("c"), client("d")], deltas)]
    assert tokens_of(bench, 1) == [5, 6, 7, 13, 14, 15]
    assert bench.core.journal.steady_rows(A) is rows_before
    assert [request.token_s for request in bench.core.journal] == [3.0, 3.0]
    assert bench.core.report().tokens_total == 6


def test_the_last_token_of_one_ends_it_and_the_other_goes_on() -> None:
    bench = decoding()
    last = rows((1, 1, 5, 15), (2, 1, 5, 25), finish=FinishReason.LENGTH)
    last.finish[1] = FinishReason.RUNNING
    sent = bench.give(A, last)
    assert [(one.to, list(one.message.tokens)) for one in sent if isinstance(one.message, Delta)] == [
        (client("c"), [15]),
        (client("d"), [25]),
    ]
    assert bench.core.journal.steady_rows(A) is None
    assert bench.give(A, rows((2, 1, 6, 26)))[0].to == client("d")
    assert tokens_of(bench, 2)[-2:] == [25, 26]


@pytest.mark.parametrize(("position", "tokens", "cancels"), [(4, [13, 14], 0), (6, [13, 14], 1)])
def test_a_token_that_is_not_the_very_next_is_not_delivered(position: int, tokens: list[int], cancels: int) -> None:
    bench = decoding()
    sent = bench.give(A, rows((1, 1, position, 99), (2, 1, 5, 25)))
    assert tokens_of(bench, 1)[3:] == tokens
    assert tokens_of(bench, 2)[3:] == [23, 24, 25]
    assert len(messages(sent, Cancel)) == cancels


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: bench.give(A, Preempted(1, 1)),
        lambda bench: bench.give(A, Returned(1, 1)),
        lambda bench: bench.give(client("c"), Gone()),
        lambda bench: bench.core.journal.add_reader(bench.core.journal.get(1), client("e")),
        lambda bench: bench.core.journal.remove_reader(client("c")),
    ],
    ids=["preempted", "returned", "client gone", "another reader", "no reader"],
)
def test_a_request_that_changes_is_looked_at_again(change: Callable[[Bench], object]) -> None:
    bench, careful = decoding(), decoding()
    careful.core.journal.keep_steady_rows = lambda instance, rows: None  # type: ignore[method-assign]
    bench_rows = careful.core.journal.steady_rows(A)
    assert bench_rows is not None
    bench_rows.is_current = False
    for each in (bench, careful):
        change(each)
    assert bench.core.journal.steady_rows(A) is None
    batch = rows((1, 1, 5, 15), (2, 1, 5, 25))
    assert bench.give(A, batch) == careful.give(A, batch)
    assert sends(bench.last) == sends(careful.last)
    assert tokens_of(bench, 2) == tokens_of(careful, 2)


def test_another_batch_of_the_same_length_is_none_of_these_rows() -> None:
    bench = decoding()
    bench.give(A, rows((2, 1, 5, 25), (1, 1, 5, 15)))
    assert tokens_of(bench, 1)[-1] == 15
    assert tokens_of(bench, 2)[-1] == 25


def test_tokens_of_one_request_in_one_batch_come_in_order() -> None:
    bench = decoding()
    batch = rows((1, 1, 5, 15), (1, 1, 6, 16), finish=FinishReason.LENGTH)
    batch.finish[0] = FinishReason.RUNNING
    sent = bench.give(A, batch)
    assert [(list(delta.tokens), delta.finish) for delta in messages(sent, Delta)] == [
        ([15], FinishReason.RUNNING),
        ([16], FinishReason.LENGTH),
    ]


def test_a_token_before_the_gap_that_ends_the_request_comes_before_the_error() -> None:
    bench = decoding(placement__max_lost_attempts=1)
    sent = bench.give(A, rows((1, 1, 5, 15), (1, 1, 9, 99)))
    assert [(list(delta.tokens), delta.finish) for delta in messages(sent, Delta)] == [
        ([15], FinishReason.RUNNING),
        ([], FinishReason.ERROR),
    ]


def test_a_batch_with_a_row_of_a_newer_attempt_is_none_of_these_rows() -> None:
    bench = decoding()
    sent = bench.give(A, rows((1, 1, 5, 15), (2, 2, 5, 99)))
    assert [(one.to, list(one.message.tokens)) for one in sent if isinstance(one.message, Delta)] == [
        (client("c"), [15])
    ]
    assert tokens_of(bench, 2) == [5, 6, 7, 23, 24]


def test_each_token_says_what_the_prompt_found_in_the_cache() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", max_tokens=10)
    bench.give(A, Reused(1, 1, 2))
    sent = [bench.give(A, rows((1, 1, position, 70))) for position in (3, 4, 5)]
    assert bench.core.journal.steady_rows(A) is not None
    assert [only(each, Delta).cached_tokens for each in sent] == [2, 2, 2]


def test_every_reader_gets_every_token() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", max_tokens=10)
    bench.give(client("d"), submit(key=place.key))
    for position in (3, 4, 5, 6):
        sent = bench.give(A, rows((1, 1, position, 70)))
        assert [one.to for one in sent] == [client("c"), client("d")]
