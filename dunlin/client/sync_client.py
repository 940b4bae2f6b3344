"""The client for ordinary code and threads."""

import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from dunlin.client.credentials import Metadata, load_credentials
from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import DunlinError, Unavailable, error_from_call, raise_if_failed
from dunlin.client.leading_manager import leader_of
from dunlin.client.requests import Message, Options, Prompt, build_request
from dunlin.client.results import Generation, GenerationBuilder
from dunlin.client.resumable_call import ResumableCall
from dunlin.client.silence_watchdog import SilenceWatchdog, WatchdogTicker
from dunlin.messages.declare import Method
from dunlin.messages.fleet import EXPLAIN, STATUS, ExplainQuery, Explanation, FleetStatus, StatusQuery
from dunlin.messages.plan import DRAIN, DrainReply, DrainRequest
from dunlin.messages.public import CancelRequest, GenerateEvent, GenerateRequest, InfoReply, InfoRequest
from dunlin.wire.channels import open_blocking_channel
from dunlin.wire.rpc.calls import CallFailed, Channel, call_blocking, stream_blocking
from dunlin.wire.rpc.methods import CANCEL, GENERATE, INFO

Q = TypeVar("Q")
R = TypeVar("R")


class Client:
    """One cluster, through its dispatchers at `endpoints`: `host:port`s, as a list or with commas between.

    Threads may share it.
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
        self._ticker = WatchdogTicker()
        self._call_timeout_s = call_timeout_s
        self._access = load_credentials(tls_dir, api_key)
        self._monitor_endpoint = monitor
        self._channels = {one: open_blocking_channel(one, self._access.security) for one in self._endpoints.all}
        self._monitor: tuple[str, Channel] | None = None

    @property
    def endpoint(self) -> str:
        """The dispatcher that is asked first, just now."""
        return self._endpoints.current

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; requests still open are cancelled."""
        for channel in self._channels.values():
            channel.close()
        if self._monitor is not None:
            self._monitor[1].close()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Generate after a text or token ids, and wait for the whole."""
        return _gathered(self.stream(prompt, **options))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Generation:
        """The assistant's next turn, whole."""
        return _gathered(self.stream(messages=messages, **options))

    def stream(
        self, prompt: Prompt | None = None, *, messages: Sequence[Message] | None = None, **options: Unpack[Options]
    ) -> Generator[GenerateEvent, None, None]:
        """Events as they come: the first names the request, the last has `finish`. Closing it early cancels."""
        return self._stream(build_request(prompt, messages, options))

    def cancel(self, request: str) -> bool:
        """Cancel a request by its id; False: no such request is running or queued at any dispatcher that answers."""
        answers = self._call_dispatchers(CANCEL, CancelRequest(request), lambda answer: answer.found)
        return any(answer.found for answer in answers)

    def info(self) -> InfoReply:
        """What is served."""
        return self._call_dispatchers(INFO, InfoRequest(), lambda answer: True)[-1]

    def status(self) -> FleetStatus:
        """Every process of the cluster, as the monitor sees it."""
        return self._call_monitor(STATUS, StatusQuery())

    def explain(self, request: str) -> Explanation:
        """The recorded decisions that touched a request."""
        return self._call_monitor(EXPLAIN, ExplainQuery(request))

    def drain(self, instance: str, undo: bool = False) -> DrainReply:
        """Have the work of an instance move to the others, or (`undo`) let it take requests again.

        The global manager that leads is asked, and answers at once; `status` tells how far it is.
        """
        endpoint = leader_of(self.status(), self.endpoint)
        channel = open_blocking_channel(endpoint, self._access.security, "global_manager")
        try:
            return self._call(endpoint, channel, DRAIN, DrainRequest(instance, undo))
        finally:
            channel.close()

    def _stream(self, request: GenerateRequest) -> Generator[GenerateEvent, None, None]:
        course = ResumableCall(request, len(self._endpoints.all), self._reconnect_s, time.monotonic())
        while not course.is_done:
            endpoint = self._endpoints.current
            try:
                yield from self._stream_from(course, endpoint)
            except CallFailed as error:
                self._endpoints.mark_failed(endpoint)
                time.sleep(course.on_failure(time.monotonic(), error, endpoint))

    def _stream_from(self, course: ResumableCall, endpoint: str) -> Generator[GenerateEvent, None, None]:
        quiet, request = SilenceWatchdog(), course.next_request(time.monotonic())
        events = stream_blocking(self._channels[endpoint], GENERATE, request, self._access.metadata, quiet.set_cancel)
        self._ticker.add(quiet)
        try:
            while (event := _next(events, quiet)) is not None:
                shown = course.on_event(time.monotonic(), event)
                if shown is not None:
                    raise_if_failed(shown)
                    yield shown
        except CallFailed as error:
            raise (quiet.call_failure(endpoint) if quiet.is_expired else error) from error.__cause__
        finally:
            self._ticker.remove(quiet)
            events.close()
        if not course.is_done:
            raise CallFailed("UNAVAILABLE", "the stream ended before the answer did")

    def _call_dispatchers(self, method: Method[Q, R], query: Q, enough: Callable[[R], bool]) -> list[R]:
        """The answers of the dispatchers, one after the other, until one is `enough`; some may be out of reach."""
        answers: list[R] = []
        failed: DunlinError | None = None
        for endpoint in self._endpoints.failover_order():
            try:
                answers.append(self._call(endpoint, self._channels[endpoint], method, query, self._access.metadata))
            except Unavailable as error:
                self._endpoints.mark_failed(endpoint)
                failed = failed or error
                continue
            if enough(answers[-1]):
                break
        if not answers and failed is not None:
            raise failed
        return answers

    def _call_monitor(self, method: Method[Q, R], query: Q) -> R:
        endpoint = self._monitor_endpoint or self.info().monitor_endpoint
        if not endpoint:
            raise Unavailable(f"{self.endpoint}: no monitor is registered in this cluster")
        if self._monitor is None or self._monitor[0] != endpoint:
            if self._monitor is not None:
                self._monitor[1].close()
            self._monitor = (endpoint, open_blocking_channel(endpoint, self._access.security, "monitor"))
        return self._call(endpoint, self._monitor[1], method, query)

    def _call(self, endpoint: str, channel: Channel, method: Method[Any, R], query: Any, metadata: Metadata = ()) -> R:
        try:
            return call_blocking(channel, method, query, self._call_timeout_s, metadata)
        except CallFailed as error:
            raise error_from_call(error, endpoint) from error


def _next(events: Generator[GenerateEvent, None, None], quiet: SilenceWatchdog) -> GenerateEvent | None:
    quiet.start()
    try:
        return next(events, None)
    finally:
        quiet.stop()


def _gathered(events: Generator[GenerateEvent, None, None]) -> Generation:
    gathering = GenerationBuilder()
    for event in events:
        gathering.add(event)
    return gathering.build()
