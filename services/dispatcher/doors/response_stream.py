"""The response stream of one request: from the core's messages to pieces of output. Knows neither HTTP nor gRPC."""

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
    """Ends a wait that lasts too long, by setting `is_expired` and then `changed`.

    It has one timer per stream, not one per token: when the timer fires, it checks when the current wait began.
    """

    def __init__(self, changed: asyncio.Event) -> None:
        self.is_expired = False
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._since_s = 0.0
        self._armed = False
        self._waits = False

    def begin(self, wait_s: float) -> None:
        """A wait of at most `wait_s` seconds begins now; no effect while one lasts."""
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
    """The outlet at a request's client address: the core's host sends into it, a door reads pieces out of it.

    Never full: what waits here is bounded by the request's own `max_tokens`. `abort` ends the request at the core when
    a stop string came. `request` is the public id, empty before the admission.
    """

    def __init__(
        self, output: OutputProcessor, metrics: RequestMetrics, abort: Callable[[], None], submit: Submit
    ) -> None:
        self.request = ""
        self.seed = submit.sampling.seed
        self.is_idempotent = bool(submit.idempotency)
        self.is_abandoned = False
        self._output = output
        self._metrics = metrics
        self._abort = abort
        self._rejected: SubmitRejected | None = None
        self._changed = asyncio.Event()
        self._timeout = WaitTimeout(self._changed)

    def send(self, message: Message) -> bool:
        """Take a message of the core, from its host; always True: it was taken."""
        match message:
            case Delta():
                self._on_delta(message)
            case Admitted(request):
                self.request = self._metrics.request = request
            case FirstToken():
                self._metrics.on_dispatched(message.queued_s)
            case SubmitRejected() if self.request:
                # It ran until another dispatcher adopted it, and its key means another request there by now.
                self._output.fail(message.detail)
                self._metrics.on_finished(FinishReason.ERROR)
            case SubmitRejected():
                self._rejected = message
        self._changed.set()
        return True

    def close(self, reason: str) -> None:
        """The host detached the address: nothing more comes; an unfinished request ends with an error, unless it was
        abandoned: a reader that was slow to see that must not take the end of this process for the request's.
        """
        if self.is_abandoned:
            return
        self._output.fail(f"the request was cut off: {reason or 'the dispatcher ended it'}")
        if self.request:
            self._metrics.on_finished(FinishReason.CANCELLED)
        self._changed.set()

    def abandon(self) -> None:
        """This process stops and the request runs on, for another dispatcher to adopt: readers get a DoorError."""
        self.is_abandoned = True
        self._changed.set()

    async def wait_admitted(self) -> None:
        """Wait until the core has admitted or refused the request.

        Raises:
            DoorError: it was refused or abandoned.
        """
        while not self.request and self._rejected is None and self._output.finish is FinishReason.RUNNING:
            await self._wait()
        self._raise_if_abandoned()
        if (refused := self._rejected) is not None:
            raise DoorError(refused.code, refused.detail, refused.field, refused.retry_after_s)

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
        """As `next`, but None if no piece came for `wait_s` seconds."""
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
