"""From recorded reasons to spans at the exporter, and the errors of a start that cannot be."""

import sys
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.fleet import Reason, Reasons
from dunlin.messages.lifecycle import Admitted, Closed
from dunlin.messages.types import FinishReason, Why
from dunlin.telemetry.spans import Span
from dunlin.wire import codec
from dunlin.wire.errors import StartError
from services.monitor.server_traces import TraceOutlet, open_traces

D = Address("dispatcher", "d0", 0xC)
CLIENT = Address("client", "http-1")
WHY = Why("test", "done")


class FakeExporter:
    def __init__(self) -> None:
        self.exported_total = 3
        self.dropped_total = 4
        self.spans: list[Span] = []
        self.closed = False

    def enqueue(self, spans: list[Span]) -> None:
        self.spans += spans

    def close(self) -> None:
        self.closed = True


def reasons(*messages: Message) -> Reasons:
    encoded = [(type(one).__name__, codec.encode(one)) for one in messages]
    return Reasons(tuple(Reason(10.0 + i, D, CLIENT, kind, data) for i, (kind, data) in enumerate(encoded)))


STORY = reasons(Admitted("req-c-1", why=WHY), Closed("req-c-1", FinishReason.STOP, 5, why=WHY))


def test_reasons_become_spans_once_they_are_old_enough() -> None:
    exporter: Any = FakeExporter()
    traces = TraceOutlet(exporter)
    assert traces.send(STORY)
    assert traces.send(Reasons((Reason(1.0, D, CLIENT, "Nonsense", b"\xff"),)))
    traces.flush(11.0)
    assert exporter.spans == []
    traces.flush(20.0)
    assert [span.name for span in exporter.spans] == ["queue", "request"]


def test_the_end_passes_on_what_has_come() -> None:
    exporter: Any = FakeExporter()
    traces = TraceOutlet(exporter)
    traces.send(STORY)
    traces.close("stopping")
    assert ([span.name for span in exporter.spans], exporter.closed) == (["queue", "request"], True)
    assert {family.name: family.samples[0].value for family in traces.families()} == {
        "dunlin_spans_exported_total": 3,
        "dunlin_spans_dropped_total": 4,
    }


def test_a_start_without_opentelemetry_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dunlin.telemetry.otlp_exporter", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartError, match=r"dunlin\[server,otel\]"):
        open_traces("http://127.0.0.1:4317", "node")


def test_a_start_with_a_bad_endpoint_says_what_is_right() -> None:
    pytest.importorskip("opentelemetry.sdk")
    with pytest.raises(StartError, match=r"http://HOST:4317"):
        open_traces("127.0.0.1:4317", "node")
