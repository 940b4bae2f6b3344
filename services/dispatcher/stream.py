"""One request's way back to its client: from the core's messages to pieces of text. Knows neither HTTP nor gRPC."""

import asyncio
from collections.abc import Callable

from dunlin.effects import Message
from dunlin.messages.door import Admitted, Delta, Rejected, Rejection, Submit
from dunlin.messages.told import FirstToken
from dunlin.messages.types import Finish
from services.dispatcher.calls import Watch
from services.dispatcher.refusals import STOPPING, DoorError
from services.dispatcher.rendering import Piece, Rendering


class Pulse:
    """Ends a wait that lasts too long. One timer a stream and not one a token: it looks when the wait began."""

    def __init__(self, news: asyncio.Event) -> None:
        self.is_over = False
        self._news = news
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
        self._waits = self.is_over = False

    def _arm(self, in_s: float, wait_s: float) -> None:
        self._armed = True
        self._loop.call_later(in_s, self._look, wait_s)

    def _look(self, wait_s: float) -> None:
        self._armed = False
        if not self._waits:
            return
        left_s = self._since_s + wait_s - self._loop.time()
        if left_s > 0:
            self._arm(left_s, wait_s)
        else:
            self.is_over = True
            self._news.set()


class Stream:
    """One request's way back: the outlet at its client address, and what a door reads.

    Never full: what waits here is bounded by the request's own `max_tokens`.
    """

    def __init__(self, rendering: Rendering, watch: Watch, withdraw: Callable[[], None], submit: Submit) -> None:
        self.request = ""
        self.seed = submit.sampling.seed
        self.is_named = bool(submit.idempotency)
        self.is_abandoned = False
        self._rendering = rendering
        self._watch = watch
        self._withdraw = withdraw
        self._rejected: Rejected | None = None
        self._news = asyncio.Event()
        self._pulse = Pulse(self._news)

    def send(self, message: Message) -> bool:
        """The host's side."""
        match message:
            case Delta():
                self._take(message)
            case Admitted(request):
                self.request = self._watch.request = request
            case FirstToken():
                self._watch.placed(message.queued_s)
            case Rejected():
                self._rejected = message
        self._news.set()
        return True

    def close(self, reason: str) -> None:
        """The host's side: nothing more will come."""
        self._rendering.fail(f"the request was cut off: {reason or 'the dispatcher ended it'}")
        if self.request:
            self._watch.finished(Finish.CANCELLED)
        self._news.set()

    def abandon(self) -> None:
        """This process stops, and another one may go on with the request: nothing of it is ended."""
        self.is_abandoned = True
        self._news.set()

    async def admitted(self) -> None:
        """Wait for the answer of the core.

        Raises:
            DoorError: it said no.
        """
        while not self.request and self._rejected is None and self._rendering.finish is Finish.RUNNING:
            await self._wait()
        self._raise_if_abandoned()
        if self._rejected is not None:
            raise DoorError(self._rejected.code, self._rejected.detail, retry_after_s=self._rejected.retry_after_s)

    async def next(self) -> Piece:
        """The next piece, merged from everything that came since the last; the one with a finish is the last.

        Raises:
            DoorError: the request was abandoned.
        """
        while (piece := self._rendering.take()) is None:
            self._raise_if_abandoned()
            await self._wait()
        return piece

    async def next_within(self, wait_s: float) -> Piece | None:
        """`next`, or None if there is none for so long."""
        while (piece := self._rendering.take()) is None and not self._pulse.is_over:
            self._raise_if_abandoned()
            self._pulse.begin(wait_s)
            await self._wait()
        self._pulse.end()
        return piece

    async def _wait(self) -> None:
        self._news.clear()
        if not self.is_abandoned:
            await self._news.wait()

    def _raise_if_abandoned(self) -> None:
        if self.is_abandoned:
            raise DoorError(Rejection.UNAVAILABLE, STOPPING, retry_after_s=1.0)

    def _take(self, delta: Delta) -> None:
        if self._rendering.finish is not Finish.RUNNING:
            return
        self._watch.tokens(len(delta.tokens))
        if self._rendering.push(delta):
            self._withdraw()
        if self._rendering.finish is not Finish.RUNNING:
            self._watch.cached_tokens = delta.cached_tokens
            self._watch.finished(self._rendering.finish)
