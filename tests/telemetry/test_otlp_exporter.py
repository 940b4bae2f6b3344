"""The exporter against a collector in this process: one that answers, one that hangs, one that is not there."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dunlin.effects import Address
from dunlin.telemetry.otlp_exporter import SpanExporter, otlp_sink
from dunlin.telemetry.spans import Span, SpanEvent

I0 = Address("instance", "i0", 10)
NEVER_S = 3600.0
"""Longer than a test may take."""


class Collector(grpc.GenericRpcHandler):
    """Keeps what it is sent; `held` makes it hang until `release`, which nothing but the end of `serving` may bring."""

    def __init__(self, held: bool = False) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.called = threading.Event()
        self.release = threading.Event()
        if not held:
            self.release.set()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        assert details.method == "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        return grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=ExportTraceServiceRequest.FromString,
            response_serializer=ExportTraceServiceResponse.SerializeToString,
        )

    def _export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        self.requests.append(request)
        self.called.set()
        self.release.wait()
        return ExportTraceServiceResponse()


@contextmanager
def serving(handler: Collector) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2), [handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        handler.release.set()
        server.stop(0).wait()


def span(number: int = 1, **overrides: Any) -> Span:
    values: dict[str, Any] = {
        "trace": 7,
        "id": number,
        "parent": 99,
        "name": "decode",
        "process": I0,
        "start_s": 1000.5,
        "end_s": 1001.25,
        "attributes": {"dunlin.why.policy": "test", "dunlin.tokens": 5, "dunlin.load": 0.5},
        "events": [SpanEvent(1001.0, "Preempted", {"dunlin.to": "d0"})],
    }
    return Span(**values | overrides)


def test_spans_arrive_whole() -> None:
    handler = Collector()
    with serving(handler) as endpoint:
        exporter = SpanExporter(otlp_sink(endpoint), "node-a")
        exporter.enqueue([span(), span(2, parent=0, name="request", error="2 s are over")])
        exporter.close(60.0)
    found = {
        one.name: one for r in handler.requests for rs in r.resource_spans for ss in rs.scope_spans for one in ss.spans
    }
    decode, request = found["decode"], found["request"]
    assert (decode.trace_id, decode.span_id, decode.parent_span_id) == tuple(
        number.to_bytes(size, "big") for number, size in ((7, 16), (1, 8), (99, 8))
    )
    assert (decode.start_time_unix_nano, decode.end_time_unix_nano) == (1000_500_000_000, 1001_250_000_000)
    assert {one.key: one.value.WhichOneof("value") for one in decode.attributes} == {
        "dunlin.why.policy": "string_value",
        "dunlin.tokens": "int_value",
        "dunlin.load": "double_value",
    }
    assert [(one.name, one.time_unix_nano) for one in decode.events] == [("Preempted", 1001_000_000_000)]
    assert (request.parent_span_id, request.status.code, request.status.message) == (b"", 2, "2 s are over")
    resource = handler.requests[0].resource_spans[0].resource.attributes
    assert {one.key: one.value.string_value for one in resource}["service.name"] == "dunlin-instance"
    assert (exporter.exported_total, exporter.dropped_total) == (2, 0)


def test_a_collector_that_hangs_delays_no_caller() -> None:
    handler = Collector(held=True)
    with serving(handler) as endpoint:
        exporter = SpanExporter(otlp_sink(endpoint, NEVER_S), most_queued=3)
        exporter.enqueue([span()])
        assert handler.called.wait(300)
        # A caller that waited for the collector would not come back from these before the end of the test.
        exporter.enqueue([span(number) for number in range(5)])
        assert exporter.dropped_total == 2
        exporter.close(0.3)
        assert not handler.release.is_set()
        assert (exporter.exported_total, exporter.dropped_total) == (0, 5)


def test_a_collector_that_is_not_there_costs_spans_and_no_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sink = otlp_sink(f"http://127.0.0.1:{port}", NEVER_S)
    exporter = SpanExporter(sink)
    exporter.enqueue([span()])
    exporter.close(0.5)  # it waits for the sink no longer than that
    assert exporter.exported_total == 0
    sink.shutdown()


def test_what_goes_wrong_in_a_sink_costs_its_batch_alone() -> None:
    class Broken:
        def export(self, spans: Any) -> Any:
            raise RuntimeError("no")

        def shutdown(self) -> None:
            pass

    exporter = SpanExporter(Broken())
    exporter.enqueue([span()])
    exporter.close(60.0)
    assert (exporter.exported_total, exporter.dropped_total) == (0, 1)


@pytest.mark.parametrize("endpoint", ["collector:4317", "grpc://collector:4317", ""])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:4317"):
        otlp_sink(endpoint)
