"""The way of the spans out of this process: recorded reasons come in, finished spans go to the exporter.

Needs the extra `otel`, and only when traces are wanted.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dunlin.effects import Message
from dunlin.extras import lacks
from dunlin.messages.fleet import Reasons
from dunlin.telemetry.explain import Record
from dunlin.telemetry.metrics import Family, traces
from dunlin.telemetry.tracer import Tracer
from dunlin.wire.codec import CodecError, decode
from dunlin.wire.errors import StartError

if TYPE_CHECKING:
    from dunlin.telemetry.otlp import Exporter

_INTERVAL_S = 0.25


class Traces:
    """The outlet at `TRACES`. Never full: what the exporter has no room for, it drops and counts."""

    def __init__(self, exporter: "Exporter", tracer: Tracer | None = None) -> None:
        self._exporter = exporter
        self._tracer = Tracer() if tracer is None else tracer

    def send(self, message: Message) -> bool:
        """Take reasons in. What cannot be decoded the ring of reasons has counted already."""
        if isinstance(message, Reasons):
            for one in message.reasons:
                try:
                    self._tracer.add(Record(one.at_s, one.sender, one.to, decode(one.kind, one.payload)))
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
        spans = self._tracer.due(now_s)
        if spans:
            self._exporter.offer(spans)

    def close(self, reason: str) -> None:
        """Pass on all that has come, and give the exporter a moment for it."""
        self.flush(float("inf"))
        self._exporter.close()

    def families(self) -> list[Family]:
        """How it fares, for the page of metrics."""
        return traces(self._exporter.exported_total, self._exporter.dropped_total)


def open_traces(endpoint: str, node: str) -> Traces:
    """Begin to export.

    Raises:
        StartError: OpenTelemetry is not installed, or the endpoint is none.
    """
    try:
        from dunlin.telemetry.otlp import Exporter, collector
    except ModuleNotFoundError as error:
        text = f"--otlp: {lacks(error.name, extra='server,otel')}"
        raise StartError(text) from None
    try:
        return Traces(Exporter(collector(endpoint), node))
    except ValueError as error:
        raise StartError(f"--otlp: {error}") from None
