"""Trace contexts: what the W3C standard calls valid, and names that follow from what they name."""

import pytest

from dunlin.telemetry.trace_context import TraceContext, span_id, trace_context, valid_traceparent

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (GIVEN, TraceContext(TRACE, PARENT, True)),
        (GIVEN[:-2] + "00", TraceContext(TRACE, PARENT, False)),
        (GIVEN[:-2] + "03", TraceContext(TRACE, PARENT, True)),
        ("cc" + GIVEN[2:] + "-what-the-future-brings", TraceContext(TRACE, PARENT, True)),
    ],
)
def test_a_clients_context_is_continued(text: str, context: TraceContext) -> None:
    assert valid_traceparent(text) == text
    assert trace_context(text, "req-1-1") == context


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "garbage",
        GIVEN.upper(),
        GIVEN + "-more",
        GIVEN + "\n",
        "ff" + GIVEN[2:],
        GIVEN[:-3],
        "00-" + "0" * 32 + GIVEN[35:],
        GIVEN[:36] + "0" * 16 + "-01",
        "٠" + GIVEN[1:],
    ],
)
def test_a_broken_one_is_ignored(text: str | None) -> None:
    assert valid_traceparent(text) == ""


def test_without_one_the_trace_follows_from_the_requests_name() -> None:
    context = trace_context("", "req-2a-1")
    assert context == trace_context("", "req-2a-1") == trace_context("broken", "req-2a-1")
    assert context.trace != trace_context("", "req-2a-2").trace
    assert (context.parent, context.sampled) == (0, True)
    assert 0 < context.trace < 1 << 128


def test_spans_of_one_request_have_names_of_their_own() -> None:
    names = {span_id("req-1-1", "attempt", n) for n in range(100)} | {span_id("req-1-2", "attempt", 1)}
    assert len(names) == 101
    assert all(0 < name < 1 << 64 for name in names)
    assert span_id("req-1-1", "attempt", 1) == span_id("req-1-1", "attempt", 1)
