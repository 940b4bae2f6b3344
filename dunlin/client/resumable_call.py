"""One call that resumes at another dispatcher when one fails: what to send next, and which events the caller gets.

Pure: knows no connection and no sleeping. Every token reaches the caller once and in order, from whichever dispatcher.
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
    """Follows one request until it `is_over`.

    `patience_s`: how long after its last event the request is still resumed at other dispatchers.
    """

    def __init__(self, request: GenerateRequest, endpoints: int, patience_s: float, now_s: float) -> None:
        self._original = request
        self._endpoints = endpoints
        self._patience_s = patience_s
        self._started_s = self._heard_s = now_s
        self._tokens = i32()
        self._request = ""
        self._seed = request.seed
        self._failures = 0
        self.is_done = False

    def next_request(self, now_s: float) -> GenerateRequest:
        """What to send now: the request itself or, once it was admitted, its continuation."""
        original = self._original
        if not self._request:
            return original
        left_s = original.timeout_s
        if left_s is not None:
            left_s = max(0.001, left_s - (now_s - self._started_s))
        return replace(
            original, seed=self._seed, timeout_s=left_s, resume_request=self._request, resume_tokens=self._tokens[:]
        )

    def on_event(self, now_s: float, event: GenerateEvent) -> GenerateEvent | None:
        """Take a dispatcher's event in; returns it as the caller gets it, None for one without news."""
        self._heard_s = now_s
        self.is_done = event.finish is not FinishReason.RUNNING
        says_nothing = not (event.text or event.tokens or event.finish is not FinishReason.RUNNING)
        if event.request and not says_nothing:
            self._failures = 0
        if not self._request and event.request:
            self._request = event.request
            self._seed = event.seed if self._seed is None else self._seed
            return event
        if says_nothing:
            return None
        self._tokens.extend(event.tokens)
        return event

    def on_failure(self, now_s: float, failed: CallFailed, endpoint: str) -> float:
        """The call failed at `endpoint`: returns the seconds until the next try.

        Raises:
            DunlinError: there will be no other try.
        """
        self._failures += 1
        if not self._may_go_on(now_s, failed):
            error = error_from_call(failed, endpoint)
            error.request = error.request or self._request
            raise error from failed
        rounds, place = divmod(self._failures, self._endpoints)
        if place or not rounds:
            return 0.0
        pause_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * float(1 << min(rounds - 1, 10)))
        return max(failed.retry_after_s or 0.0, pause_s * (0.5 + random()))

    def _may_go_on(self, now_s: float, failed: CallFailed) -> bool:
        lost = failed.status == "UNAVAILABLE" or (failed.status == "INTERNAL" and "RST_STREAM" in failed.detail)
        if not self._request:
            # Not admitted anywhere: each dispatcher is tried once.
            return lost and self._failures < self._endpoints
        busy = isinstance(error_from_call(failed, ""), QueueFull)
        return (lost or busy) and now_s - self._heard_s < self._patience_s
