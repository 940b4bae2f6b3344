"""The clients of a live run: each sends one request through the SDK and records what it is told."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from types import TracebackType

from benchmarks.faults.chaos.rounds import LiveRequest
from benchmarks.faults.chaos.streams import RecordedStream, StreamEnd
from dunlin.client import (
    AsyncClient,
    DeadlineExceeded,
    DunlinError,
    GenerationFailed,
    QueueFull,
    Unavailable,
)
from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import FinishReason, RequestClass

PATIENCE_S = 240.0
"""Seconds after which an interactive stream that has not ended waits for ever. Batch work waits for as long as there is
other work, a job's lines before it too: it has these seconds once nothing new comes.
"""
RECONNECT_S = 120.0
RETRY_S = 0.5
ENDS: tuple[tuple[type[DunlinError], StreamEnd], ...] = (
    (QueueFull, StreamEnd.REFUSED),
    (DeadlineExceeded, StreamEnd.DEADLINE),
    (GenerationFailed, StreamEnd.FAILED),
    (Unavailable, StreamEnd.UNAVAILABLE),
    (DunlinError, StreamEnd.STRANGE),
)


class ChaosClients:
    """Owns an SDK client per order of the dispatchers, the open streams and the records of all of them.

    `on_end` is told each stream that ended.
    """

    def __init__(self, doors: Sequence[str], monitor: str, on_end: Callable[[RecordedStream], object]) -> None:
        orders = [[*doors[first:], *doors[:first]] for first in range(len(doors))]
        self.clients = [AsyncClient(order, monitor=monitor, reconnect_s=RECONNECT_S) for order in orders]
        self.streams: list[RecordedStream] = []
        self._waiting: list[RecordedStream] = []
        self._on_end = on_end
        self._start_s = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "ChaosClients":
        for client in self.clients:
            self._open.push_async_callback(client.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._open.aclose()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start_s

    def send(self, ask: LiveRequest) -> None:
        """Begin a request: one client, and a second one later if it is planned."""
        self._begin(ask, ask.door, 0.0)
        if ask.second_client_s is not None:
            self._begin(ask, ask.door + 1, ask.second_client_s)

    async def alone(self, asks: Sequence[LiveRequest], width: int) -> list[RecordedStream]:
        """Send all of them, `width` at a time, without keys, deadlines and departures; their streams."""
        streams, turns = [RecordedStream(plain(ask)) for ask in asks], asyncio.Semaphore(width)

        async def one(stream: RecordedStream) -> None:
            async with turns:
                await self._follow(stream, stream.request.door)
                while stream.end is StreamEnd.REFUSED:  # a slow machine: its turn comes later
                    await asyncio.sleep(RETRY_S)
                    await self._follow(stream, stream.request.door)

        await asyncio.gather(*map(one, streams))
        return streams

    async def all_ended(self) -> None:
        """Wait until no stream is open, now that no more come; those that are still are told as they are."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE_S)
        for stream in list(self._waiting):
            self._on_end(stream)

    def _begin(self, ask: LiveRequest, door: int, after_s: float) -> None:
        stream = RecordedStream(ask)
        self.streams.append(stream)
        task = asyncio.create_task(self._run(stream, door, after_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, stream: RecordedStream, door: int, after_s: float) -> None:
        self._waiting.append(stream)
        await asyncio.sleep(after_s)
        await self._follow(stream, door)
        self._waiting.remove(stream)
        self._on_end(stream)

    async def _follow(self, stream: RecordedStream, door: int) -> None:
        stream.began_s = self.now_s()
        leaves_s = stream.request.disconnect_s
        patience_s = None if stream.request.is_batch else PATIENCE_S
        try:
            async with asyncio.timeout(leaves_s if leaves_s is not None else patience_s):
                while not await self._try(stream, self.clients[(door + stream.tries) % len(self.clients)]):  # noqa: ASYNC110
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            stream.end = StreamEnd.LEFT if leaves_s is not None else StreamEnd.OPEN
        stream.ended_s = self.now_s()

    async def _try(self, stream: RecordedStream, client: AsyncClient) -> bool:
        """One call of the SDK; False: no dispatcher could take the request, which may be sent again."""
        stream.tries += 1
        try:
            async with aclosing(_open(client, stream.request)) as events:
                async for event in events:
                    self._record(stream, event)
            stream.end = StreamEnd.FINISHED
        except DunlinError as error:
            if isinstance(error, Unavailable) and not stream.public_id:
                return False
            stream.end = next(end for kind, end in ENDS if isinstance(error, kind))
            stream.detail = f"{type(error).__name__}: {error}"
        return True

    def _record(self, stream: RecordedStream, event: GenerateEvent) -> None:
        if stream.finish is FinishReason.RUNNING:
            stream.finish = event.finish
        else:
            stream.after_end += 1
        stream.public_id = event.request or stream.public_id
        if event.tokens:
            stream.pieces.append((self.now_s(), tuple(event.tokens)))


def plain(ask: LiveRequest) -> LiveRequest:
    """The same request without a key, deadline, departure or second client."""
    return replace(ask, key="", second_client_s=None, disconnect_s=None, timeout_s=None, is_batch=False)


def _open(client: AsyncClient, ask: LiveRequest) -> AsyncGenerator[GenerateEvent, None]:
    return client.stream(
        ask.prompt,
        max_tokens=ask.max_tokens,
        temperature=0.0 if ask.seed is None else 1.0,
        seed=ask.seed,
        ignore_eos=True,
        tenant=ask.tenant,
        timeout_s=ask.timeout_s,
        idempotency_key=ask.key,
        request_class=RequestClass.BATCH if ask.is_batch else RequestClass.INTERACTIVE,
    )
