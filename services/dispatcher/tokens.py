"""The rows of a `Tokens` batch. Knows how the columns fit together and nothing of what they mean."""

from collections.abc import Iterator
from typing import NamedTuple

from dunlin.messages.dispatch import Tokens
from dunlin.messages.types import F32, I32, Finish

FINISHES = tuple(Finish)


class Row(NamedTuple):
    """One token of one attempt."""

    request: int
    attempt: int
    position: int
    token: int
    logprob: float
    finish: Finish
    top_token: I32
    top_logprob: F32


def rows_of(batch: Tokens) -> Iterator[Row] | None:
    """The rows in order; None if the columns do not fit together, so that no row of it can be trusted."""
    return _rows(batch) if _is_whole(batch) else None


def _is_whole(batch: Tokens) -> bool:
    rows = len(batch.request)
    columns = (batch.attempt, batch.position, batch.token, batch.logprob, batch.finish)
    if any(len(column) != rows for column in columns):
        return False
    if any(not 0 <= finish < len(FINISHES) for finish in batch.finish):
        return False
    counts = batch.top_count
    if len(counts) not in (0, rows) or any(count < 0 for count in counts):
        return False
    return len(batch.top_token) == len(batch.top_logprob) == sum(counts)


def _rows(batch: Tokens) -> Iterator[Row]:
    start = 0
    for index, request in enumerate(batch.request):
        stop = start + (batch.top_count[index] if batch.top_count else 0)
        yield Row(
            request,
            batch.attempt[index],
            batch.position[index],
            batch.token[index],
            batch.logprob[index],
            FINISHES[batch.finish[index]],
            batch.top_token[start:stop],
            batch.top_logprob[start:stop],
        )
        start = stop
