"""One request's way back to its client: from the core's messages to pieces of text. Knows neither HTTP nor gRPC."""

import asyncio
from collections.abc import Callable

from dunlin.effects import Message
from dunlin.messages.door import Admitted, Delta, RejectionCode, Submit, SubmitRejected
from dunlin.messages.lifecycle import FirstToken
from dunlin.messages.types import FinishReason
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.calls import RequestMetrics
from services.dispatcher.doors.generation.output import OutputPiece, OutputProcessor


class WaitTimeout:
    """Ends a wait that lasts too long. One timer a stream and not one a token: it looks when the wait began."""

    def __init__(self, news: asyncio.Event) -> None:
        self.is_expired = False
        self._changed = news
        self._loop = asyncio.get_running_loop()
        self._since_s = 0.0
        self._armed = False
        self._waits = False

    def begin(self, wait_s: float) -> None:
        """Somebody waits from now on (or still), for `wait_s` seconds at most."""
        if not self._waits:
            self._waits = True
            self._since_s = self._loop.time()
        if not self._armed:
            self._arm(wait_s, wait_s)

    def end(self) -> None:
        """The wait is over."""
        self._waits = self.is_expired = False

    def _arm(self, in_s: float, wait_s: float) -> None:
        self._armed = True
        self._loop.call_later(in_s, self._check, wait_s)

    def _check(self, wait_s: float) -> None:
        self._armed = False
        if not self._waits:
            return
        left_s = self._since_s + wait_s - self._loop.time()
        if left_s > 0:
            self._arm(left_s, wait_s)
        else:
            self.is_expired = True
            self._changed.set()


class ResponseStream:
    """One request's way back: the outlet at its client address, and what a door reads.

    Never full: what waits here is bounded by the request's own `max_tokens`.
    """

    def __init__(
        self, rendering: OutputProcessor, watch: RequestMetrics, withdraw: Callable[[], None], submit: Submit
    ) -> None:
        self.request = ""
        self.seed = submit.sampling.seed
        self.is_idempotent = bool(submit.idempotency)
        self.is_abandoned = False
        self._output = rendering
        self._metrics = watch
        self._abort = withdraw
        self._rejected: SubmitRejected | None = None
        self._changed = asyncio.Event()
        self._timeout = WaitTimeout(self._changed)

    def send(self, message: Message) -> bool:
        """The host's side."""
        match message:
            case Delta():
                self._on_delta(message)
            case Admitted(request):
                self.request = self._metrics.request = request
            case FirstToken():
                self._metrics.on_dispatched(message.queued_s)
            case SubmitRejected():
                self._rejected = message
        self._changed.set()
        return True

    def close(self, reason: str) -> None:
        """The host's side: nothing more will come."""
        self._output.fail(f"the request was cut off: {reason or 'the dispatcher ended it'}")
        if self.request:
            self._metrics.on_finished(FinishReason.CANCELLED)
        self._changed.set()

    def abandon(self) -> None:
        """This process stops, and another one may go on with the request: nothing of it is ended."""
        self.is_abandoned = True
        self._changed.set()

    async def wait_admitted(self) -> None:
        """Wait for the answer of the core.

        Raises:
            DoorError: it said no.
        """
        while not self.request and self._rejected is None and self._output.finish is FinishReason.RUNNING:
            await self._wait()
        self._raise_if_abandoned()
        if self._rejected is not None:
            raise DoorError(self._rejected.code, self._rejected.detail, retry_after_s=self._rejected.retry_after_s)

    async def next(self) -> OutputPiece:
        """The next piece, merged from everything that came since the last; the one with a finish is the last.

        Raises:
            DoorError: the request was abandoned.
        """
        while (piece := self._output.drain()) is None:
            self._raise_if_abandoned()
            await self._wait()
        return piece

    async def next_within(self, wait_s: float) -> OutputPiece | None:
        """`next`, or None if there is none for so long."""
        while (piece := self._output.drain()) is None and not self._timeout.is_expired:
            self._raise_if_abandoned()
            self._timeout.begin(wait_s)
            await self._wait()
        self._timeout.end()
        return piece

    async def _wait(self) -> None:
        self._changed.clear()
        if not self.is_abandoned:
            await self._changed.wait()

    def _raise_if_abandoned(self) -> None:
        if self.is_abandoned:
            raise DoorError(RejectionCode.UNAVAILABLE, STOPPING_TEXT, retry_after_s=1.0)

    def _on_delta(self, delta: Delta) -> None:
        if self._output.finish is not FinishReason.RUNNING:
            return
        self._metrics.on_tokens(len(delta.tokens))
        if self._output.push(delta):
            self._abort()
        if self._output.finish is not FinishReason.RUNNING:
            self._metrics.cached_tokens = delta.cached_tokens
            self._metrics.on_finished(self._output.finish)
