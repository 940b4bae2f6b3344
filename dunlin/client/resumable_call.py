"""A call that resumes at another dispatcher when one fails: what to send next, and which events the caller gets.

Pure: knows no connection and no sleeping. Every token reaches the caller once and in order, from any dispatcher.
"""

from dataclasses import replace
from random import random

from dunlin.client.errors import QueueFull, error_from_call
from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.messages.types import FinishReason, i32
from dunlin.wire.rpc.calls import CallFailed

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0


class ResumableCall:
    """Follows one request until it `is_done`.

    Args:
        request: the request as the caller made it.
        endpoints: the number of dispatchers that can be tried.
        patience_s: for how many seconds after its last event the request is still resumed at other dispatchers; time in
            which the caller did not wait for the next one does not count.
        now_s: the time, by the clock of all later calls.
    """

    def __init__(self, request: GenerateRequest, endpoints: int, patience_s: float, now_s: float) -> None:
        self._original = request
        self._endpoints = endpoints
        self._patience_s = patience_s
        self._started_s = self._heard_s = now_s
        self._tokens = i32()
        self._scored = 0
        self._request = ""
        self._seed = request.seed
        self._failures = 0
        self.is_done = False

    def next_request(self, now_s: float) -> GenerateRequest:
        """What to send now: the request itself or, once it was admitted, the request to resume it."""
        original = self._original
        if not self._request:
            return original
        left_s = original.timeout_s
        if left_s is not None:
            left_s = max(0.001, left_s - (now_s - self._started_s))
        return replace(
            original,
            seed=self._seed,
            timeout_s=left_s,
            resume_request=self._request,
            resume_tokens=self._tokens[:],
            resume_scored=self._scored,
        )

    def on_event(self, now_s: float, event: GenerateEvent) -> GenerateEvent | None:
        """Take in a dispatcher's event; the event for the caller, None if it is a keepalive."""
        self._heard_s = now_s
        self.is_done = event.finish is not FinishReason.RUNNING
        has_output = event.text or event.tokens or event.prompt_logprobs
        is_empty = not (has_output or event.finish is not FinishReason.RUNNING)
        if event.request and not is_empty:
            self._failures = 0
        if not self._request and event.request:
            self._request = event.request
            self._seed = event.seed if self._seed is None else self._seed
            return event
        if is_empty:
            return None
        self._tokens.extend(event.tokens)
        self._scored += len(event.prompt_logprobs)
        return event

    def on_read(self, now_s: float) -> None:
        """The caller has taken the last event and waits for the next one: patience begins now."""
        self._heard_s = now_s

    def on_failure(self, now_s: float, failed: CallFailed, endpoint: str) -> float:
        """The call failed at `endpoint`; the seconds to wait before the next try.

        Raises:
            DunlinError: there is no other try.
        """
        self._failures += 1
        if not self._may_retry(now_s, failed):
            error = error_from_call(failed, endpoint)
            error.request = error.request or self._request
            raise error from failed
        rounds, place = divmod(self._failures, self._endpoints)
        if place or not rounds:
            return 0.0
        pause_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * float(1 << min(rounds - 1, 10)))
        return max(failed.retry_after_s or 0.0, pause_s * (0.5 + random()))

    def _may_retry(self, now_s: float, failed: CallFailed) -> bool:
        lost = failed.status == "UNAVAILABLE" or (failed.status == "INTERNAL" and "RST_STREAM" in failed.detail)
        if not self._request:
            # Not admitted yet: each dispatcher is tried once.
            return lost and self._failures < self._endpoints
        busy = isinstance(error_from_call(failed, ""), QueueFull)
        return (lost or busy) and now_s - self._heard_s < self._patience_s
