"""The rows of a `Tokens` batch: checks that its columns agree in length, and reads one row. Knows no journal."""

from typing import NamedTuple

from dunlin.messages.dispatch import Tokens
from dunlin.messages.types import F32, I32, FinishReason

FINISHES = tuple(FinishReason)


class TokenRow(NamedTuple):
    """One token of one attempt; `position` counts from the sequence's first token."""

    request: int
    attempt: int
    position: int
    token: int
    logprob: float
    finish: FinishReason
    top_token: I32
    top_logprob: F32


def is_consistent(batch: Tokens) -> bool:
    """Whether the columns agree in length and range; if not, no row of the batch can be trusted."""
    rows, counts = len(batch.request), batch.top_count
    if not rows == len(batch.attempt) == len(batch.position) == len(batch.token):
        return False
    if not rows == len(batch.logprob) == len(batch.finish):
        return False
    if rows and not 0 <= min(batch.finish) <= max(batch.finish) < len(FINISHES):
        return False
    if counts and (len(counts) != rows or min(counts) < 0):
        return False
    return len(batch.top_token) == len(batch.top_logprob) == (sum(counts) if counts else 0)


def token_row(batch: Tokens, index: int) -> TokenRow:
    """Row `index` of a consistent batch."""
    start = sum(batch.top_count[:index])
    stop = start + (batch.top_count[index] if batch.top_count else 0)
    return TokenRow(
        batch.request[index],
        batch.attempt[index],
        batch.position[index],
        batch.token[index],
        batch.logprob[index],
        FINISHES[batch.finish[index]],
        batch.top_token[start:stop],
        batch.top_logprob[start:stop],
    )
