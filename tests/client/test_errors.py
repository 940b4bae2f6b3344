"""Which error a failed call becomes."""

import pytest

from dunlin.client.errors import (
    Cancelled,
    DeadlineExceeded,
    GenerationFailed,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    ServerError,
    error_from_call,
    raise_if_failed,
)
from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import FINISH_ERRORS, FinishReason
from dunlin.wire.rpc.calls import CallFailed


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (CallFailed("RESOURCE_EXHAUSTED", "the queue is full", 1.5), QueueFull),
        (CallFailed("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!", None), QueueFull),
        (CallFailed("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 8)", None), InvalidRequest),
        (CallFailed("OUT_OF_RANGE", "too long", None), PromptTooLong),
        (CallFailed("INTERNAL", "oops", None), ServerError),
    ],
)
def test_a_status_becomes_the_error_that_says_what_to_do(failed: CallFailed, kind: type[Exception]) -> None:
    assert type(error_from_call(failed, "h:1")) is kind


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (FinishReason.DEADLINE, DeadlineExceeded),
        (FinishReason.ERROR, GenerationFailed),
        (FinishReason.TOO_LONG, PromptTooLong),
        (FinishReason.CANCELLED, Cancelled),
    ],
)
def test_an_end_that_is_an_error_is_raised_with_its_request(finish: FinishReason, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="why") as raised:
        raise_if_failed(GenerateEvent("req-1", finish=finish, detail="why"))
    assert (type(raised.value), getattr(raised.value, "request", "")) == (kind, "req-1")


def test_every_end_is_an_error_or_none() -> None:
    good = {FinishReason.RUNNING, FinishReason.STOP, FinishReason.LENGTH}
    assert {FinishReason.CANCELLED, *FINISH_ERRORS} == set(FinishReason) - good
    for finish in good:
        raise_if_failed(GenerateEvent("req-1", finish=finish))
