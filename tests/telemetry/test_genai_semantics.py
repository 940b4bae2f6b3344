"""A request as a trace viewer finds it: from the doors, over OTLP, in the names of OpenTelemetry's conventions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as conventions

import dunlin
from dunlin.client import AsyncClient
from dunlin.messages.fleet import Reason, Reasons
from dunlin.telemetry.otlp_exporter import SpanExporter, otlp_sink
from dunlin.wire.codec import encode
from services.monitor.server_traces import TraceOutlet
from tests.services.dispatcher.door_requests import MODEL, post, with_doors
from tests.services.dispatcher.doors.test_authentication import ACME, tenants
from tests.services.dispatcher.running_doors import Doors
from tests.telemetry.test_otlp_exporter import Collector, serving

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KNOWN = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI_")}


class Viewer:
    """Spans as Jaeger or Tempo keep them: by id, with their resource and scope."""

    def __init__(self, received: Collector) -> None:
        self.spans: dict[bytes, Span] = {}
        self.resources: dict[bytes, dict[str, Any]] = {}
        self.scopes: set[tuple[str, str]] = set()
        for request in received.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.scopes.add((scope.scope.name, scope.scope.version))
                    for span in scope.spans:
                        assert span.span_id not in self.spans
                        self.spans[span.span_id] = span
                        self.resources[span.span_id] = attributes(resource.resource)

    @property
    def roots(self) -> list[Span]:
        """The spans whose parent is not here: where this system's part of a trace begins."""
        return [span for span in self.spans.values() if span.parent_span_id not in self.spans]

    def path(self, span: Span) -> str:
        """The names from the root down."""
        parent = self.spans.get(span.parent_span_id)
        return f"{self.path(parent)} > {span.name}" if parent is not None else span.name


def attributes(holder: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in holder.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found


def seen(test: Callable[[Doors], Awaitable[None]], **options: Any) -> Viewer:
    """What a viewer has of what the doors did in `test`."""
    received = Collector()

    async def traced(cluster: Doors) -> None:
        await test(cluster)
        decisions, lost = cluster.host.drain(1000)
        assert lost == 0
        reasons = [
            Reason(one.at_s, one.sender, one.to, type(one.message).__name__, encode(one.message)) for one in decisions
        ]
        await asyncio.to_thread(_export, Reasons(tuple(reasons)))

    def _export(reasons: Reasons) -> None:
        with serving(received) as endpoint:
            traces = TraceOutlet(SpanExporter(otlp_sink(endpoint), "node-a"))
            traces.send(reasons)
            traces.close("the end")

    with_doors(traced, **options)
    return Viewer(received)


def only(viewer: Viewer) -> tuple[Span, dict[str, Any]]:
    """The one request that there was: its span and attributes, checked for what all of them have."""
    (root,) = viewer.roots
    assert viewer.scopes == {("dunlin", dunlin.__version__)}
    assert root.kind == Span.SPAN_KIND_SERVER
    resource = viewer.resources[root.span_id]
    assert (resource["service.name"], resource["service.version"]) == ("dunlin-dispatcher", dunlin.__version__)
    found = attributes(root)
    assert {name for name in found if name.startswith("gen_ai.")} <= KNOWN
    return root, found


def test_a_chat_through_http() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.reuses = 4
        messages: Any = [{"role": "user", "content": "hi"}]
        await cluster.client(ACME).chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=3,
            temperature=0.5,
            top_p=0.75,
            seed=11,
            extra_headers={"traceparent": TRACEPARENT},
        )

    viewer = seen(test, tenants=tenants())
    root, found = only(viewer)
    assert root.name == f"chat {MODEL}"
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == tuple(TRACEPARENT.split("-")[1:3])
    request = found["dunlin.request"]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "dunlin",
        "gen_ai.system": "dunlin",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.id": request,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.output.type": "text",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.seed": 11,
        "gen_ai.usage.input_tokens": found["dunlin.why.figure.prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "dunlin.generated_tokens": 3,
        "dunlin.tenant": "acme",
        "dunlin.class": "interactive",
        "dunlin.door": "http",
        "server.address": "127.0.0.1",
        "server.port": 8000,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "error.type" not in found
    assert root.status.code == Status.STATUS_CODE_UNSET


def test_the_phases_hang_below_the_request_and_lie_within_it() -> None:
    async def test(cluster: Doors) -> None:
        await cluster.client().completions.create(model=MODEL, prompt="hi", max_tokens=3)

    viewer = seen(test)
    root, _ = only(viewer)
    name = f"text_completion {MODEL}"
    assert root.name == name
    assert {viewer.path(span) for span in viewer.spans.values()} == {
        name,
        f"{name} > queue",
        f"{name} > attempt",
        f"{name} > attempt > placement",
        f"{name} > attempt > decode",
    }
    for span in viewer.spans.values():
        parent = viewer.spans.get(span.parent_span_id, span)
        assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano
        assert span.trace_id == root.trace_id
        assert (span.kind == Span.SPAN_KIND_SERVER) == (span is root)


def test_a_word_means_one_thing_wherever_it_stands() -> None:
    """Prompt, sequence (prompt and what came before this attempt) and generated tokens have a name each."""

    async def test(cluster: Doors) -> None:
        await cluster.client().completions.create(model=MODEL, prompt="hi", max_tokens=3)

    viewer = seen(test)
    by_name = {span.name.split()[0]: attributes(span) for span in viewer.spans.values()}
    assert all("dunlin.tokens" not in found for found in by_name.values())
    prompt = by_name["text_completion"]["gen_ai.usage.input_tokens"]
    assert by_name["attempt"]["dunlin.prompt_tokens"] == by_name["attempt"]["dunlin.sequence_tokens"] == prompt
    assert by_name["text_completion"]["dunlin.generated_tokens"] == 3


def test_a_request_through_grpc() -> None:
    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint) as sdk:
            await sdk.generate("hi", max_tokens=2)

    root, found = only(seen(test))
    assert root.name == f"text_completion {MODEL}"
    assert (found["dunlin.door"], found["gen_ai.usage.output_tokens"], found["server.port"]) == ("grpc", 2, 7070)
    assert root.parent_span_id == b""


def test_a_prompt_that_is_too_long_is_one_span_with_its_error() -> None:
    async def test(cluster: Doors) -> None:
        assert (await post(cluster, "/v1/completions", {"prompt": "x", "max_tokens": 5_000}))[0] == 400

    viewer = seen(test)
    root, found = only(viewer)
    assert len(viewer.spans) == 1
    assert root.name == "text_completion", "a span of a refusal is not named by what a client may make up"
    assert (found["error.type"], found["gen_ai.operation.name"]) == ("too_long", "text_completion")
    assert found["gen_ai.request.model"] == MODEL
    assert "gen_ai.response.model" not in found
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "refuse: too_long")


@pytest.mark.parametrize(
    ("body", "error"),
    [({"prompt": ""}, "invalid"), ({"prompt": "x", "model": "no-such"}, "unknown_model"), (b"{", "malformed")],
)
def test_what_else_a_door_refuses_is_a_span_too(body: Any, error: str) -> None:
    async def test(cluster: Doors) -> None:
        await post(cluster, "/v1/completions", body)

    _, found = only(seen(test))
    assert found["error.type"] == error


def test_a_deadline_is_an_error_with_its_type() -> None:
    async def test(cluster: Doors) -> None:
        body = {"prompt": "x", "timeout_s": 0.05}
        assert (await post(cluster, "/v1/completions", body))[0] == 504

    root, found = only(seen(test, serving=False))
    assert (found["error.type"], found["gen_ai.response.finish_reasons"]) == ("deadline_exceeded", ["error"])
    assert root.status.code == Status.STATUS_CODE_ERROR
