"""Exports traces: takes recorded reasons, and passes finished spans to the exporter.

Needs the extra `otel`, and only when traces are wanted.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dunlin.effects import Message
from dunlin.messages.fleet import Reasons
from dunlin.runtime.extras import missing_package_text
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.metrics import MetricFamily, exporter_metrics
from dunlin.telemetry.request_tracer import RequestTracer
from dunlin.wire.codec import CodecError, decode
from dunlin.wire.errors import StartError

if TYPE_CHECKING:
    from dunlin.telemetry.otlp_exporter import SpanExporter

_INTERVAL_S = 0.25


class TraceOutlet:
    """The outlet at `TRACES`. Never full: what the exporter has no room for, it drops and counts."""

    def __init__(self, exporter: "SpanExporter", tracer: RequestTracer | None = None) -> None:
        self._exporter = exporter
        self._tracer = RequestTracer() if tracer is None else tracer

    def send(self, message: Message) -> bool:
        """Take reasons. One that cannot be decoded is skipped: the ring of reasons has counted it already."""
        if isinstance(message, Reasons):
            for one in message.reasons:
                try:
                    self._tracer.add(DecisionRecord(one.at_s, one.sender, one.to, decode(one.kind, one.payload)))
                except CodecError:
                    continue
        return True

    async def run(self, clock: Callable[[], float]) -> None:
        """Pass on what ended, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.flush(clock())

    def flush(self, now_s: float) -> None:
        """Pass on what ended by now."""
        spans = self._tracer.take_finished(now_s)
        if spans:
            self._exporter.enqueue(spans)

    def close(self, reason: str) -> None:
        """Pass on all that has come, and give the exporter a moment for it."""
        self.flush(float("inf"))
        self._exporter.close()

    def families(self) -> list[MetricFamily]:
        """Counters of the exporter, for the page of metrics."""
        return exporter_metrics(self._exporter.exported_total, self._exporter.dropped_total)


def open_traces(endpoint: str, node: str) -> TraceOutlet:
    """Begin to export.

    Raises:
        StartError: OpenTelemetry is not installed, or the endpoint is none.
    """
    try:
        from dunlin.telemetry.otlp_exporter import SpanExporter, otlp_sink
    except ModuleNotFoundError as error:
        text = f"--otlp: {missing_package_text(error.name, extra='server,otel')}"
        raise StartError(text) from None
    try:
        return TraceOutlet(SpanExporter(otlp_sink(endpoint), node))
    except ValueError as error:
        raise StartError(f"--otlp: {error}") from None
