"""Spans to an OpenTelemetry collector, over OTLP/gRPC, from a thread of its own. Needs the extra `otel`.

Never blocks its caller: the queue is bounded, drops and counts what does not fit, and closing has a time limit. The one
module that knows OpenTelemetry; it is imported only with `--otlp`.
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as OtelEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import dunlin
from dunlin.effects import Address
from dunlin.telemetry.spans import Span

BATCH = 512
_SCOPE = InstrumentationScope("dunlin", dunlin.__version__)
_NS = 1_000_000_000


class SpanSink(Protocol):
    """The destination of batches; `export` blocks for a bounded time."""

    def export(self, spans: Sequence[ReadableSpan], /) -> SpanExportResult: ...

    def shutdown(self) -> None: ...


def otlp_sink(endpoint: str, timeout_s: float = 5.0) -> SpanSink:
    """A collector at `http://HOST:PORT` (plain text) or `https://HOST:PORT`.

    The usual variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE…) hold for the rest.

    Raises:
        ValueError: the endpoint is neither.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{endpoint!r} is no endpoint of OTLP over gRPC: give http://HOST:4317 or https://HOST:4317")
    return OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)


class SpanExporter:
    """Owns the queue and the thread. `exported_total` and `dropped_total` count spans."""

    def __init__(self, sink: SpanSink, node: str = "", most_queued: int = 8_192) -> None:
        self.exported_total = 0
        self.dropped_total = 0
        self._sink = sink
        self._node = node
        self._most = most_queued
        self._queue: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = False
        # A daemon: a collector that hangs must not keep this process alive.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def enqueue(self, spans: Sequence[Span]) -> None:
        """Take spans for sending; what does not fit is dropped. Never blocks for longer than a moment."""
        with self._changed:
            room = self._most - len(self._queue)
            self._queue.extend(spans[:room])
            self.dropped_total += max(0, len(spans) - room)
            self._changed.notify()

    def close(self, limit_s: float = 0.5) -> None:
        """Send what is queued if that takes no longer than `limit_s`; the rest is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        with self._changed:
            self.dropped_total += len(self._queue)
            self._queue.clear()

    def _run(self) -> None:
        while batch := self._batch():
            try:
                sent = self._sink.export([_readable(span, self._node) for span in batch])
            except Exception:  # whatever a collector does, only its spans are lost
                sent = SpanExportResult.FAILURE
            with self._changed:
                if sent is SpanExportResult.SUCCESS:
                    self.exported_total += len(batch)
                else:
                    self.dropped_total += len(batch)
        self._sink.shutdown()

    def _batch(self) -> list[Span]:
        """The next spans, waiting for some; none: the end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]


def _readable(span: Span, node: str) -> ReadableSpan:
    failed = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace, span.id),
        parent=_context(span.trace, span.parent) if span.parent else None,
        resource=_resource(span.process, node),
        attributes=span.attributes,
        events=[OtelEvent(one.name, one.attributes, int(one.at_s * _NS)) for one in span.events],
        kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
        instrumentation_scope=_SCOPE,
        status=failed,
        start_time=int(span.start_s * _NS),
        end_time=int(span.end_s * _NS),
    )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@lru_cache(1024)
def _resource(process: Address, node: str) -> Resource:
    named = {"service.namespace": "dunlin", "service.name": f"dunlin-{process.role}"}
    version = {"service.version": dunlin.__version__}
    return Resource({**named, **version, "service.instance.id": str(process), "dunlin.seen_by_node": node})
