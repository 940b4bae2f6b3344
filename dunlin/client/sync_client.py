"""The blocking client, which threads may share. Its test: tests/client/test_client.py."""

import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from dunlin.client.batches import Batches, Connection
from dunlin.client.credentials import Metadata, load_credentials
from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import NO_ANSWER, DunlinError, Unavailable, error_from_call, raise_if_failed
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
    """A client of one cluster. All methods raise `DunlinError`s; threads may share it. `batches` has batch jobs.

    If a dispatcher dies or hangs, its streams resume at the next one: the caller sees a pause, and every token once.

    Args:
        endpoints: the dispatchers' `host:port`s, as a list or separated by commas.
        call_timeout_s: seconds for a call that does not generate; generating has its own `timeout_s`.
        tls_dir: the folder with `ca.pem` and, where clients need certificates, `cert.pem` and `key.pem`; None:
            `$DUNLIN_TLS_DIR`.
        api_key: the key for dispatchers that require one; None: `$DUNLIN_API_KEY`.
        monitor: the monitor's `host:port`; empty: the dispatcher is asked for it.
        reconnect_s: for how many seconds after its last event a stream is still resumed; time in which the caller does
            not wait for the next one does not count.
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
        self._credentials = load_credentials(tls_dir, api_key)
        self._monitor_endpoint = monitor
        self._channels = {one: open_blocking_channel(one, self._credentials.security) for one in self._endpoints.all}
        self._monitor: tuple[str, Channel] | None = None
        metadata = self._credentials.metadata
        self.batches = Batches(Connection(self._endpoints, metadata, call_timeout_s, self._channels.__getitem__))

    @property
    def endpoint(self) -> str:
        """The `host:port` of the dispatcher that gets the next call."""
        return self._endpoints.current

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; open requests are cancelled."""
        for channel in self._channels.values():
            channel.close()
        if self._monitor is not None:
            self._monitor[1].close()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Continue a text or token ids; the whole answer."""
        return _collect(self.stream(prompt, **options))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Generation:
        """The assistant's next message; the whole answer."""
        return _collect(self.stream(messages=messages, **options))

    def stream(
        self, prompt: Prompt | None = None, *, messages: Sequence[Message] | None = None, **options: Unpack[Options]
    ) -> Generator[GenerateEvent, None, None]:
        """The events as they come: the first names the request, the last has `finish`. Closing it early cancels."""
        return self._stream(build_request(prompt, messages, options))

    def cancel(self, request: str) -> bool:
        """Cancel a request by its id; False: no such request is running or queued at any dispatcher that answers."""
        answers = self._call_dispatchers(CANCEL, CancelRequest(request), lambda answer: answer.found)
        return any(answer.found for answer in answers)

    def info(self) -> InfoReply:
        """The served model and its limits."""
        return self._call_dispatchers(INFO, InfoRequest(), lambda answer: True)[-1]

    def status(self) -> FleetStatus:
        """Every process of the cluster, as the monitor sees it."""
        return self._call_monitor(STATUS, StatusQuery())

    def explain(self, request: str) -> Explanation:
        """The recorded decisions that touched a request."""
        return self._call_monitor(EXPLAIN, ExplainQuery(request))

    def drain(self, instance: str, undo: bool = False) -> DrainReply:
        """Move an instance's work to the others, or (`undo`) let it serve again.

        The call goes to the leading global manager, which answers at once; `status` shows the progress.
        """
        endpoint = leader_of(self.status(), self.endpoint)
        channel = open_blocking_channel(endpoint, self._credentials.security, "global_manager")
        try:
            return self._call(endpoint, channel, DRAIN, DrainRequest(instance, undo))
        finally:
            channel.close()

    def _stream(self, request: GenerateRequest) -> Generator[GenerateEvent, None, None]:
        call = ResumableCall(request, len(self._endpoints.all), self._reconnect_s, time.monotonic())
        while not call.is_done:
            endpoint = self._endpoints.current
            try:
                yield from self._stream_from(call, endpoint)
            except CallFailed as error:
                self._endpoints.mark_failed(endpoint)
                time.sleep(call.on_failure(time.monotonic(), error, endpoint))

    def _stream_from(self, call: ResumableCall, endpoint: str) -> Generator[GenerateEvent, None, None]:
        watchdog, request = SilenceWatchdog(), call.next_request(time.monotonic())
        events = stream_blocking(
            self._channels[endpoint], GENERATE, request, self._credentials.metadata, watchdog.set_cancel
        )
        self._ticker.add(watchdog)
        try:
            while (event := _next(events, watchdog)) is not None:
                shown = call.on_event(time.monotonic(), event)
                if shown is not None:
                    raise_if_failed(shown)
                    yield shown
                    call.on_read(time.monotonic())
        except CallFailed as error:
            raise (watchdog.call_failure(endpoint) if watchdog.is_expired else error) from error.__cause__
        finally:
            self._ticker.remove(watchdog)
            events.close()
        if not call.is_done:
            raise CallFailed("UNAVAILABLE", "the stream ended before the answer did")

    def _call_dispatchers(self, method: Method[Q, R], query: Q, enough: Callable[[R], bool]) -> list[R]:
        """Call one dispatcher after the other until an answer is `enough`; the answers.

        Raises:
            DunlinError: no dispatcher answered; what is wrong with the first of them.
        """
        answers: list[R] = []
        failed: DunlinError | None = None
        for endpoint in self._endpoints.failover_order():
            try:
                answers.append(
                    self._call(endpoint, self._channels[endpoint], method, query, self._credentials.metadata)
                )
            except NO_ANSWER as error:
                self._endpoints.mark_failed(endpoint)
                failed = failed or error
                continue
            if enough(answers[-1]):
                break
        if not answers and failed is not None:
            raise failed
        return answers

    def _registered_monitor(self) -> str:
        # A dispatcher that has just started again may not have heard of the monitor yet; another has.
        answers = self._call_dispatchers(INFO, InfoRequest(), lambda answer: bool(answer.monitor_endpoint))
        return answers[-1].monitor_endpoint

    def _call_monitor(self, method: Method[Q, R], query: Q) -> R:
        endpoint = self._monitor_endpoint or self._registered_monitor()
        if not endpoint:
            raise Unavailable(f"{self.endpoint}: no monitor is registered in this cluster")
        if self._monitor is None or self._monitor[0] != endpoint:
            if self._monitor is not None:
                self._monitor[1].close()
            self._monitor = (endpoint, open_blocking_channel(endpoint, self._credentials.security, "monitor"))
        return self._call(endpoint, self._monitor[1], method, query)

    def _call(self, endpoint: str, channel: Channel, method: Method[Any, R], query: Any, metadata: Metadata = ()) -> R:
        try:
            return call_blocking(channel, method, query, self._call_timeout_s, metadata)
        except CallFailed as error:
            raise error_from_call(error, endpoint) from error


def _next(events: Generator[GenerateEvent, None, None], watchdog: SilenceWatchdog) -> GenerateEvent | None:
    watchdog.start()
    try:
        return next(events, None)
    finally:
        watchdog.stop()


def _collect(events: Generator[GenerateEvent, None, None]) -> Generation:
    builder = GenerationBuilder()
    for event in events:
        builder.add(event)
    return builder.build()
