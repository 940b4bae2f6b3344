"""The client for ordinary code and threads."""

from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from dunlin.client.access import Metadata, access_of
from dunlin.client.errors import Unavailable, error_of, raise_if_failed
from dunlin.client.requests import Message, Options, Prompt, request_of
from dunlin.client.results import Gathering, Generation
from dunlin.messages.fleet import ExplainQuery, Explanation, FleetStatus, StatusQuery
from dunlin.messages.public import CancelRequest, GenerateEvent, GenerateRequest, InfoReply, InfoRequest
from dunlin.wire.calls import CallFailed, Channel, call, stream
from dunlin.wire.channels import open_blocking_channel
from dunlin.wire.methods import CANCEL, EXPLAIN, GENERATE, INFO, STATUS, Method

Q = TypeVar("Q")
R = TypeVar("R")


class Client:
    """One cluster, through the dispatcher at `endpoint` (`host:port`). Threads may share it.

    All methods raise `DunlinError`s. `call_timeout_s` bounds those that only ask; generating has its own `timeout_s`.
    `tls_dir` (None: `$DUNLIN_TLS_DIR`) holds `ca.pem` and, where clients need certificates, `cert.pem` and `key.pem`;
    `api_key` (None: `$DUNLIN_API_KEY`) is for dispatchers that ask for one. `monitor` is the monitor's `host:port`, ""
    to ask the dispatcher for it.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        call_timeout_s: float = 10.0,
        tls_dir: str | Path | None = None,
        api_key: str | None = None,
        monitor: str = "",
    ) -> None:
        self.endpoint = endpoint
        self._call_timeout_s = call_timeout_s
        self._access = access_of(tls_dir, api_key)
        self._monitor_endpoint = monitor
        self._channel = open_blocking_channel(endpoint, self._access.security)
        self._monitor: tuple[str, Channel] | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; requests still open are cancelled."""
        self._channel.close()
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
        """Cancel a request by its id; False: no such request is running or queued at this dispatcher."""
        return self._ask(CANCEL, CancelRequest(request)).found

    def info(self) -> InfoReply:
        """What is served."""
        return self._ask(INFO, InfoRequest())

    def status(self) -> FleetStatus:
        """Every process of the cluster, as the monitor sees it."""
        return self._ask_monitor(STATUS, StatusQuery())

    def explain(self, request: str) -> Explanation:
        """The recorded decisions that touched a request."""
        return self._ask_monitor(EXPLAIN, ExplainQuery(request))

    def _stream(self, request: GenerateRequest) -> Generator[GenerateEvent, None, None]:
        events = stream(self._channel, GENERATE, request, self._access.metadata)
        try:
            for event in events:
                raise_if_failed(event)
                yield event
        except CallFailed as error:
            raise error_of(error, self.endpoint) from error
        finally:
            events.close()

    def _ask(self, method: Method[Q, R], query: Q) -> R:
        return self._asked(self.endpoint, self._channel, method, query, self._access.metadata)

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


def _gathered(events: Generator[GenerateEvent, None, None]) -> Generation:
    gathering = Gathering()
    for event in events:
        gathering.add(event)
    return gathering.whole()
