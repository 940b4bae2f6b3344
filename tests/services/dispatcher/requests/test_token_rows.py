"""Token rows: a batch's columns must agree; each row has its own likeliest tokens."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from dunlin.messages.types import FinishReason, f32, i8, i32, i64
from services.dispatcher.requests.token_rows import is_consistent, token_row
from tests.services.dispatcher.factories import rows


def test_rows_come_out_with_their_own_tops() -> None:
    batch = replace(
        rows((1, 2, 3, 4), (5, 6, 7, 8), finish=FinishReason.STOP),
        top_count=i32([1, 2]),
        top_token=i32([40, 80, 81]),
        top_logprob=f32([-0.5, -1.0, -2.0]),
    )
    assert is_consistent(batch)
    first, second = token_row(batch, 0), token_row(batch, 1)
    assert (first.request, first.attempt, first.position, first.token, first.finish) == (1, 2, 3, 4, FinishReason.STOP)
    assert (list(first.top_token), list(second.top_token)) == ([40], [80, 81])
    assert list(second.top_logprob) == [-1.0, -2.0]
    assert first.logprob == -0.5


@pytest.mark.parametrize("finish", [-1, len(FinishReason)])
def test_an_unknown_finish_spoils_the_batch(finish: int) -> None:
    assert not is_consistent(replace(rows((1, 1, 1, 1)), finish=array("b", [finish])))
    assert is_consistent(replace(rows((1, 1, 1, 1)), finish=array("b", [len(FinishReason) - 1])))


def test_counts_that_cancel_out_spoil_the_batch() -> None:
    assert not is_consistent(replace(rows((1, 1, 1, 1), (2, 1, 1, 1)), top_count=i32([1, -1])))


@pytest.mark.parametrize(
    "short",
    [{"attempt": i32()}, {"position": i64()}, {"token": i32()}, {"logprob": f32()}, {"finish": i8()}],
    ids=lambda short: next(iter(short)),
)
def test_a_column_that_is_too_short_spoils_the_batch(short: dict[str, Any]) -> None:
    assert not is_consistent(replace(rows((1, 1, 1, 1)), **short))


def test_likeliest_tokens_without_their_log_probabilities_spoil_the_batch() -> None:
    batch = replace(rows((1, 1, 1, 1)), top_count=i32([1]), top_token=i32([40]))
    assert not is_consistent(batch)
    assert is_consistent(replace(batch, top_logprob=f32([-0.5])))


def test_a_count_for_a_row_that_is_not_there_spoils_the_batch() -> None:
    assert not is_consistent(replace(rows((1, 1, 1, 1)), top_count=i32([0, 0])))
