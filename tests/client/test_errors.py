"""Which error a failed call becomes."""

import pytest

from dunlin.client.errors import InvalidRequest, PromptTooLong, QueueFull, ServerError, error_from_call
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
