"""The client for asyncio. It belongs to the event loop in which it is first used."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from dunlin.client.credentials import load_credentials
from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import DunlinError, Unavailable, error_from_call, raise_if_failed
from dunlin.client.leading_manager import leader_of
from dunlin.client.requests import Message, Options, Prompt, build_request
from dunlin.client.results import Generation, GenerationBuilder
from dunlin.client.resumable_call import ResumableCall
from dunlin.client.silence_watchdog import TICK_S, SilenceWatchdog
from dunlin.messages.declare import Method
from dunlin.messages.fleet import EXPLAIN, STATUS, ExplainQuery, Explanation, FleetStatus, StatusQuery
from dunlin.messages.plan import DRAIN, DrainReply, DrainRequest
from dunlin.messages.public import CancelRequest, GenerateEvent, GenerateRequest, InfoReply, InfoRequest
from dunlin.wire.channels import open_channel
from dunlin.wire.rpc.calls import AioChannel, CallFailed, call_async, stream_async
from dunlin.wire.rpc.methods import CANCEL, GENERATE, INFO

Q = TypeVar("Q")
R = TypeVar("R")


class AsyncClient:
    """One cluster, through its dispatchers at `endpoints`: `host:port`s, as a list or with commas.

    If a dispatcher dies or hangs the next one goes on with its streams, which notice nothing but a pause; for up to
    `reconnect_s` after the last sign of life.
    All methods raise `DunlinError`s. `call_timeout_s` bounds those that only ask; generating has its own `timeout_s`.
    `tls_dir` (None: `$DUNLIN_TLS_DIR`) holds `ca.pem` and, where clients need certificates, `cert.pem` and `key.pem`;
    `api_key` (None: `$DUNLIN_API_KEY`) is for dispatchers that ask for one. `monitor` is the monitor's `host:port`, ""
    to ask the dispatcher for it.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        call_timeout_s: float = 10.0,
        tls_dir: str | Path | None = None,
        api_key: str | None = None,
        monitor: str = "",
        reconnect_s: float = 20.0,
    ) -> None:
        self._endpoints = Endpoints(endpoints)
        self._reconnect_s = reconnect_s
        self._access = load_credentials(tls_dir, api_key)
        self._monitor = monitor
        self._call_timeout_s = call_timeout_s
        self._channels: dict[str, AioChannel] = {}

    @property
    def endpoint(self) -> str:
        """The dispatcher that is asked first, just now."""
        return self._endpoints.current

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; requests still open are cancelled."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    async def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Generate after a text or token ids, and wait for the whole."""
        return await _gathered(self.stream(prompt, **options))

    async def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Generation:
        """The assistant's next turn, whole."""
        return await _gathered(self.stream(messages=messages, **options))

    def stream(
        self, prompt: Prompt | None = None, *, messages: Sequence[Message] | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Events as they come: the first names the request, the last has `finish`. Closing it early cancels.

        Leaving an `async for` does not close a generator at once: use `contextlib.aclosing`.
        """
        return self._stream(build_request(prompt, messages, options))

    async def cancel(self, request: str) -> bool:
        """Cancel a request by its id; False: no such request is running or queued at any dispatcher that answers."""
        answers = await self._call_dispatchers(CANCEL, CancelRequest(request), lambda answer: answer.found)
        return any(answer.found for answer in answers)

    async def info(self) -> InfoReply:
        """What is served."""
        return (await self._call_dispatchers(INFO, InfoRequest(), lambda answer: True))[-1]

    async def status(self) -> FleetStatus:
        """Every process of the cluster, as the monitor sees it."""
        return await self._call_monitor(STATUS, StatusQuery())

    async def explain(self, request: str) -> Explanation:
        """The recorded decisions that touched a request."""
        return await self._call_monitor(EXPLAIN, ExplainQuery(request))

    async def drain(self, instance: str, undo: bool = False) -> DrainReply:
        """Have the work of an instance move to the others, or (`undo`) let it take requests again.

        The global manager that leads is asked, and answers at once; `status` tells how far it is.
        """
        endpoint = leader_of(await self.status(), self.endpoint)
        return await self._call(endpoint, DRAIN, DrainRequest(instance, undo), "global_manager")

    async def _stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        course = ResumableCall(request, len(self._endpoints.all), self._reconnect_s, time.monotonic())
        while not course.is_done:
            endpoint = self._endpoints.current
            try:
                async with aclosing(self._stream_from(course, endpoint)) as events:
                    async for event in events:
                        yield event
            except CallFailed as error:
                self._endpoints.mark_failed(endpoint)
                await asyncio.sleep(course.on_failure(time.monotonic(), error, endpoint))

    async def _stream_from(self, course: ResumableCall, endpoint: str) -> AsyncGenerator[GenerateEvent, None]:
        quiet, request = SilenceWatchdog(), course.next_request(time.monotonic())
        ticking = asyncio.create_task(_tick(quiet), name="dunlin-client-ticker")
        try:
            async with aclosing(self._open(endpoint, request, quiet)) as events:
                while (event := await _next(events, quiet, endpoint)) is not None:
                    shown = course.on_event(time.monotonic(), event)
                    if shown is not None:
                        raise_if_failed(shown)
                        yield shown
        finally:
            ticking.cancel()
        if not course.is_done:
            raise CallFailed("UNAVAILABLE", "the stream ended before the answer did")

    def _open(
        self, endpoint: str, request: GenerateRequest, quiet: SilenceWatchdog
    ) -> AsyncGenerator[GenerateEvent, None]:
        return stream_async(self._channel(endpoint), GENERATE, request, self._access.metadata, quiet.set_cancel)

    async def _call_dispatchers(self, method: Method[Q, R], query: Q, enough: Callable[[R], bool]) -> list[R]:
        """The answers of the dispatchers, one after the other, until one is `enough`; some may be out of reach."""
        answers: list[R] = []
        failed: DunlinError | None = None
        for endpoint in self._endpoints.failover_order():
            try:
                answers.append(await self._call(endpoint, method, query))
            except Unavailable as error:
                self._endpoints.mark_failed(endpoint)
                failed = failed or error
                continue
            if enough(answers[-1]):
                break
        if not answers and failed is not None:
            raise failed
        return answers

    def _channel(self, endpoint: str, role: str = "dispatcher") -> AioChannel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = open_channel(endpoint, self._access.security, role)
        return channel

    async def _call_monitor(self, method: Method[Q, R], query: Q) -> R:
        endpoint = self._monitor or (await self.info()).monitor_endpoint
        if not endpoint:
            raise Unavailable(f"{self.endpoint}: no monitor is registered in this cluster")
        # A restarted monitor may answer elsewhere: keep no channel to where it was.
        for other in [one for one in self._channels if one not in (endpoint, *self._endpoints.all)]:
            await self._channels.pop(other).close(None)
        return await self._call(endpoint, method, query, "monitor")

    async def _call(self, endpoint: str, method: Method[Any, R], query: Any, role: str = "dispatcher") -> R:
        metadata = self._access.metadata if role == "dispatcher" else ()
        try:
            return await call_async(self._channel(endpoint, role), method, query, self._call_timeout_s, metadata)
        except CallFailed as error:
            raise error_from_call(error, endpoint) from error


async def _next(
    events: AsyncGenerator[GenerateEvent, None], quiet: SilenceWatchdog, endpoint: str
) -> GenerateEvent | None:
    quiet.start()
    try:
        return await anext(events, None)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not quiet.is_expired or (task is not None and task.cancelling()):
            raise  # it is this task that is cancelled
        raise quiet.call_failure(endpoint) from None
    finally:
        quiet.stop()


async def _tick(quiet: SilenceWatchdog) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        quiet.tick()


async def _gathered(events: AsyncGenerator[GenerateEvent, None]) -> Generation:
    gathering = GenerationBuilder()
    async with aclosing(events) as stream:
        async for event in stream:
            gathering.add(event)
    return gathering.build()
