"""One client call at a door, from its arrival to its last byte, for metrics, access log and traces.

Knows neither HTTP nor gRPC. Each request of the call (one choice of one prompt) has a `RequestMetrics` of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from dunlin.effects import Address
from dunlin.limits import escape_surrogates
from dunlin.messages.door import RefusedAtDoor
from dunlin.messages.lifecycle import CallOrigin
from dunlin.messages.types import FINISH_ERRORS, FinishReason, RequestClass
from dunlin.runtime.core_host import CoreHost
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.metrics import DoorMetrics

CHAT, COMPLETION = "chat", "text_completion"
"""The two operations that generate, by their OpenTelemetry names."""
PROBE_PATHS = ("/health", "/metrics")
"""Paths that monitoring requests all the time: counted, and not logged."""
MAX_SHOWN_CHARACTERS = 256
"""Characters kept of texts that the client chose (model, path, user agent)."""


@dataclass(slots=True)
class DoorCall:
    """What is known of one call so far.

    `path` is a route or a gRPC method (a metric's label: one of few), `target` the path that the client sent, without
    its query. `operation` is empty for a call that generates nothing. `began_s` is when its head was complete,
    `arrived_s` when its body was. `code` is the kind of its error in one word, such as `too_long`. `is_recorded`: the
    core refused it, and so has recorded the refusal itself. `rises_after_s`: see `Submit`.
    """

    door: str
    path: str
    began_s: float
    operation: str = ""
    method: str = ""
    target: str = ""
    client: str = ""
    user_agent: str = ""
    trace: str = ""
    arrived_s: float = 0.0
    tenant: str = ""
    model: str = ""
    request_class: RequestClass = RequestClass.INTERACTIVE
    prompt_tokens: int | None = None
    request_metrics: list["RequestMetrics"] = field(default_factory=list)
    code: str = ""
    detail: str = ""
    is_recorded: bool = False
    rises_after_s: float | None = None

    def __post_init__(self) -> None:
        self.arrived_s = self.arrived_s or self.began_s
        self.target, self.user_agent = (
            escape_surrogates(self.target[:MAX_SHOWN_CHARACTERS]),
            escape_surrogates(self.user_agent[:MAX_SHOWN_CHARACTERS]),
        )

    def set_request(self, model: str, settings: RequestSettings) -> None:
        """The call was parsed: it asks for this model with these settings."""
        self.model = escape_surrogates(model[:MAX_SHOWN_CHARACTERS])
        self.tenant, self.request_class = settings.tenant, settings.request_class

    def set_error(self, code: str, detail: str) -> None:
        """The call is answered with an error of kind `code`."""
        self.code, self.detail = code, escape_surrogates(detail)

    @property
    def was_admitted(self) -> bool:
        """Whether all its requests were admitted."""
        return bool(self.request_metrics) and all(request.was_admitted for request in self.request_metrics)

    @property
    def finish_error(self) -> str:
        """The kind of error of the first request that failed after its admission; empty: none failed."""
        failed = (request.finish for request in self.request_metrics if request.finish in FINISH_ERRORS)
        return next((FINISH_ERRORS[finish] for finish in failed if finish is not None), "")


class RequestMetrics:
    """Measures one request and feeds the metrics.

    `queue_s` and `first_s` are seconds from the call's arrival to the first dispatch and to the first token; None: not
    yet. `request` is the public id, empty before the admission.
    """

    def __init__(self, metrics: DoorMetrics, call: DoorCall, prompt_tokens: int, clock: Callable[[], float]) -> None:
        self.request = ""
        self.tokens_total = 0
        self.cached_tokens = 0
        self.first_s: float | None = None
        self.queue_s: float | None = None
        self.finish: FinishReason | None = None
        self._metrics = metrics
        self._labels = metrics.labels(call.door, call.request_class, call.tenant)
        self._generated = metrics.generated_counter(self._labels)
        self._prompt_tokens = prompt_tokens
        self._clock = clock
        self._arrived_s = call.arrived_s
        self._submitted_s = clock()
        self._began_s = 0.0
        call.request_metrics.append(self)

    @property
    def was_admitted(self) -> bool:
        """Whether the core admitted it."""
        return bool(self.request) or self.finish is not None

    def on_dispatched(self, queued_s: float | None) -> None:
        """The request was dispatched for the first time, `queued_s` seconds after it was submitted."""
        if queued_s is not None and self.queue_s is None:
            self.queue_s = self._submitted_s - self._arrived_s + queued_s
            self._metrics.observe("queue", self._labels, self.queue_s)

    def on_tokens(self, number: int) -> None:
        """`number` tokens came now."""
        if not number:
            return
        if not self.tokens_total:
            self._on_first_token()
        self.tokens_total += number
        self._generated.inc(number)

    def on_finished(self, finish: FinishReason) -> None:
        """The request ended now; a second call is ignored."""
        if self.finish is not None:
            return
        self.finish = finish
        now_s = self._clock()
        metrics, labels = self._metrics, self._labels
        metrics.count_end(labels, finish)
        metrics.observe("duration", labels, now_s - self._arrived_s)
        metrics.observe("prompt", labels, self._prompt_tokens)
        metrics.observe("generated", labels, self.tokens_total)
        if self.tokens_total > 1:
            metrics.observe("each_token", labels, (now_s - self._began_s) / (self.tokens_total - 1))

    def _on_first_token(self) -> None:
        self._began_s = self._clock()
        self.first_s = self._began_s - self._arrived_s
        self._metrics.count_prompt(self._labels, self._prompt_tokens)
        self._metrics.observe("first_token", self._labels, self.first_s)


class CallLogSink(Protocol):
    """A log that takes lines without blocking."""

    def write(self, line: Mapping[str, object]) -> None: ...


class CallRecorder:
    """Counts and logs each ended call, and reports to the core the calls that a door refused.

    `servers` maps each door's name to its HOST:PORT.
    """

    def __init__(
        self,
        host: CoreHost,
        metrics: DoorMetrics,
        log: CallLogSink | None = None,
        servers: Mapping[str, str] | None = None,
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._log = log
        self._servers = servers or {}
        self._numbers = count(1)

    def record_end(self, call: DoorCall, status: int | str) -> None:
        """The call ended with this HTTP status or gRPC code: its last byte was sent, or the client left."""
        self._metrics.count_call(call.door, call.path, str(status))
        if call.code and not call.was_admitted:
            self._record_refusal(call)
        if self._log is not None and call.path not in PROBE_PATHS:
            self._log.write(self._log_line(call, status))

    def origin(self, call: DoorCall) -> CallOrigin:
        """The call's description for traces."""
        return CallOrigin(call.door, call.operation, call.model, call.tenant, self._servers.get(call.door, ""))

    def _record_refusal(self, call: DoorCall) -> None:
        self._metrics.count_refusal(call.door, call.code, call.tenant)
        if call.operation and not call.is_recorded:
            # A unique address: without a traceparent, the trace's id is derived from it.
            client = Address("client", f"{call.door}-refused-{next(self._numbers)}")
            self._host.deliver(client, RefusedAtDoor(call.code, call.detail, call.trace, self.origin(call)))

    def _log_line(self, call: DoorCall, status: int | str) -> dict[str, object]:
        return {
            "time_s": call.began_s,
            "door": call.door,
            "method": call.method,
            "path": call.target,
            "status": status,
            "error": call.code or call.finish_error or None,
            "client": call.client,
            "agent": call.user_agent,
            "tenant": call.tenant,
            "duration_s": self._host.clock() - call.began_s,
            **(_generation_fields(call) if call.operation else {}),
        }


def _generation_fields(call: DoorCall) -> dict[str, object]:
    """The fields of a generation call's log line. They hold nothing of a prompt or an answer."""
    requests = call.request_metrics
    first = requests[0] if requests else None
    return {
        "model": call.model or None,
        "class": call.request_class.name.lower(),
        "requests": [request.request for request in requests if request.request],
        "finish": [request.finish.name.lower() for request in requests if request.finish is not None],
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": sum(request.cached_tokens for request in requests),
        "output_tokens": sum(request.tokens_total for request in requests),
        "queue_s": first and first.queue_s,
        "first_token_s": first and first.first_s,
        "traceparent": call.trace or None,
    }
