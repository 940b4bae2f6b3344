"""The client for ordinary code and threads."""

import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from dunlin.client.access import Metadata, access_of
from dunlin.client.course import Course
from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import DunlinError, Unavailable, error_of, raise_if_failed
from dunlin.client.leader import leader_of
from dunlin.client.quiet import Quiet, Ticker
from dunlin.client.requests import Message, Options, Prompt, request_of
from dunlin.client.results import Gathering, Generation
from dunlin.messages.declare import Method
from dunlin.messages.fleet import EXPLAIN, STATUS, ExplainQuery, Explanation, FleetStatus, StatusQuery
from dunlin.messages.plan import DRAIN, DrainReply, DrainRequest
from dunlin.messages.public import CancelRequest, GenerateEvent, GenerateRequest, InfoReply, InfoRequest
from dunlin.wire.calls import CallFailed, Channel, call, stream
from dunlin.wire.channels import open_blocking_channel
from dunlin.wire.methods import CANCEL, GENERATE, INFO

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
        self._ticker = Ticker()
        self._call_timeout_s = call_timeout_s
        self._access = access_of(tls_dir, api_key)
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
        return self._stream(request_of(prompt, messages, options))

    def cancel(self, request: str) -> bool:
        """Cancel a request by its id; False: no such request is running or queued at any dispatcher that answers."""
        answers = self._ask_all(CANCEL, CancelRequest(request), lambda answer: answer.found)
        return any(answer.found for answer in answers)

    def info(self) -> InfoReply:
        """What is served."""
        return self._ask_all(INFO, InfoRequest(), lambda answer: True)[-1]

    def status(self) -> FleetStatus:
        """Every process of the cluster, as the monitor sees it."""
        return self._ask_monitor(STATUS, StatusQuery())

    def explain(self, request: str) -> Explanation:
        """The recorded decisions that touched a request."""
        return self._ask_monitor(EXPLAIN, ExplainQuery(request))

    def drain(self, instance: str, undo: bool = False) -> DrainReply:
        """Have the work of an instance move to the others, or (`undo`) let it take requests again.

        The global manager that leads is asked, and answers at once; `status` tells how far it is.
        """
        endpoint = leader_of(self.status(), self.endpoint)
        channel = open_blocking_channel(endpoint, self._access.security, "global_manager")
        try:
            return self._asked(endpoint, channel, DRAIN, DrainRequest(instance, undo))
        finally:
            channel.close()

    def _stream(self, request: GenerateRequest) -> Generator[GenerateEvent, None, None]:
        course = Course(request, len(self._endpoints.all), self._reconnect_s, time.monotonic())
        while not course.is_over:
            endpoint = self._endpoints.current
            try:
                yield from self._follow(course, endpoint)
            except CallFailed as error:
                self._endpoints.leave(endpoint)
                time.sleep(course.failed(time.monotonic(), error, endpoint))

    def _follow(self, course: Course, endpoint: str) -> Generator[GenerateEvent, None, None]:
        quiet, request = Quiet(), course.request(time.monotonic())
        events = stream(self._channels[endpoint], GENERATE, request, self._access.metadata, quiet.watch)
        self._ticker.add(quiet)
        try:
            while (event := _next(events, quiet)) is not None:
                shown = course.take(time.monotonic(), event)
                if shown is not None:
                    raise_if_failed(shown)
                    yield shown
        except CallFailed as error:
            raise (quiet.failure(endpoint) if quiet.is_over else error) from error.__cause__
        finally:
            self._ticker.remove(quiet)
            events.close()
        if not course.is_over:
            raise CallFailed("UNAVAILABLE", "the stream ended before the answer did")

    def _ask_all(self, method: Method[Q, R], query: Q, enough: Callable[[R], bool]) -> list[R]:
        """The answers of the dispatchers, one after the other, until one is `enough`; some may be out of reach."""
        answers: list[R] = []
        failed: DunlinError | None = None
        for endpoint in self._endpoints.in_turn():
            try:
                answers.append(self._asked(endpoint, self._channels[endpoint], method, query, self._access.metadata))
            except Unavailable as error:
                self._endpoints.leave(endpoint)
                failed = failed or error
                continue
            if enough(answers[-1]):
                break
        if not answers and failed is not None:
            raise failed
        return answers

    def _ask_monitor(self, method: Method[Q, R], query: Q) -> R:
        endpoint = self._monitor_endpoint or self.info().monitor_endpoint
        if not endpoint:
            raise Unavailable(f"{self.endpoint}: no monitor is registered in this cluster")
        if self._monitor is None or self._monitor[0] != endpoint:
            if self._monitor is not None:
                self._monitor[1].close()
            self._monitor = (endpoint, open_blocking_channel(endpoint, self._access.security, "monitor"))
        return self._asked(endpoint, self._monitor[1], method, query)

    def _asked(self, endpoint: str, channel: Channel, method: Method[Any, R], query: Any, metadata: Metadata = ()) -> R:
        try:
            return call(channel, method, query, self._call_timeout_s, metadata)
        except CallFailed as error:
            raise error_of(error, endpoint) from error


def _next(events: Generator[GenerateEvent, None, None], quiet: Quiet) -> GenerateEvent | None:
    quiet.listen()
    try:
        return next(events, None)
    finally:
        quiet.heard()


def _gathered(events: Generator[GenerateEvent, None, None]) -> Generation:
    gathering = Gathering()
    for event in events:
        gathering.add(event)
    return gathering.whole()
