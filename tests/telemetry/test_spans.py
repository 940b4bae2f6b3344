"""Spans: one trace per request, its phases below it in order, each decision with its reason."""

import pytest

from dunlin.messages.dispatch import (
    Cancel,
    Continued,
    Preempted,
    Ready,
    Refusal,
    Refused,
    Returned,
    Reused,
)
from dunlin.messages.pool import ReserveRegion
from dunlin.messages.types import FINISH_ERRORS, FinishReason, Region, Why
from dunlin.telemetry.trace_context import span_id, trace_context
from tests.telemetry.request_records import (
    GIVEN,
    I0,
    I1,
    KEY,
    KV,
    WHY,
    D,
    accepted,
    admitted,
    closed,
    first,
    outline,
    place,
    trace_spans,
)


def test_a_request_that_runs_through() -> None:
    spans = trace_spans([admitted(), place(), accepted(), first(), closed()])
    assert outline(spans) == [
        ("request", "", "d0", 0, 4),
        ("queue", "request", "d0", 0, 1),
        ("attempt", "request", "d0", 1, 4),
        ("placement", "attempt", "d0", 1, 2),
        ("prefill", "attempt", "i0", 2, 3),
        ("decode", "attempt", "i0", 3, 4),
    ]
    assert {span.trace for span in spans} == {trace_context("", KEY).trace}
    assert [span.error for span in spans] == [""] * 6
    by_name = {span.name: span for span in spans}
    assert by_name["placement"].attributes == {
        "dunlin.why.policy": "least_loaded",
        "dunlin.why.chosen": "i0",
        "dunlin.why.figure.load": 0.25,
        "dunlin.why.rejected.i1": "load 0.5",
    }
    root = by_name["request"].attributes
    assert (root["dunlin.request"], root["dunlin.finish"], root["dunlin.generated_tokens"]) == (KEY, "stop", 5)


def test_a_clients_trace_goes_on_into_ours() -> None:
    spans = trace_spans([admitted(GIVEN), place(), accepted(), first(), closed()])
    root = next(span for span in spans if span.name == "request")
    assert (root.trace, root.parent) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert {span.trace for span in spans} == {root.trace}


def test_preemption_and_what_came_back() -> None:
    region = ReserveRegion(3, D, 1, 1, Region(0, 2, 0, 8), 4096, "fp32", "w", WHY)
    said = [admitted(), place(), accepted(), first(), (I0, D, Preempted(1, 1, WHY)), (I0, KV, region)]
    spans = trace_spans([*said, (I0, D, Continued(1, 1, 41, 6, 2, WHY)), closed()])
    assert outline(spans)[5:] == [
        ("decode", "attempt", "i0", 3, 4),
        ("preempted", "attempt", "i0", 4, 6),
        ("decode", "attempt", "i0", 6, 7),
    ]
    gap = next(span for span in spans if span.name == "preempted")
    assert (gap.attributes["dunlin.restored_tokens"], gap.attributes["dunlin.recomputed_tokens"]) == (6, 2)
    assert [(event.name, event.at_s) for event in gap.events] == [("ReserveRegion", 105.0), ("Continued", 106.0)]
    assert len({span.id for span in spans}) == len(spans)


def test_an_attempt_that_its_instance_lost_and_the_next_one() -> None:
    returned = (I0, D, Returned(1, 1, Why("engine lost", "engine gone")))
    spans = trace_spans(
        [admitted(), place(), accepted(), first(), returned, place(2, I1), accepted(2, I1), first(2, I1), closed()]
    )
    assert [line[0] for line in outline(spans)] == [
        *("request", "queue", "attempt", "placement", "prefill", "decode"),
        *("queue", "attempt", "placement", "prefill", "decode"),
    ]
    attempts = [span for span in spans if span.name == "attempt"]
    assert [(span.error, span.attributes["dunlin.instance"]) for span in attempts] == [("returned", "i0"), ("", "i1")]
    assert next(span for span in spans if span.name == "request").attributes["dunlin.attempts"] == 2


def test_a_suspects_attempt_is_cancelled_and_placed_again() -> None:
    cancel = (D, I0, Cancel(1, 1, Why("dispatcher", "cancel: the instance is suspect")))
    spans = trace_spans([admitted(), place(), accepted(), first(), cancel, place(2, I1), closed()])
    attempts = [span for span in spans if span.name == "attempt"]
    assert [span.error for span in attempts] == ["cancel: the instance is suspect", ""]
    assert [span.end_s for span in attempts] == [104.0, 106.0]


def test_a_refused_attempt_waits_in_the_queue_again() -> None:
    spans = trace_spans([admitted(), place(), (I0, D, Refused(1, 1, Refusal.FULL, WHY)), place(2, I1), closed()])
    assert [line[0] for line in outline(spans)] == [
        "request", "queue", "attempt", "placement", "queue", "attempt", "placement",
    ]  # fmt: skip
    assert [span.error for span in spans if span.name == "attempt"] == ["refused", ""]


def test_a_migration_is_a_phase_between_two_attempts() -> None:
    ready = (I0, D, Ready(1, 1, I1, 9, 6, WHY))
    spans = trace_spans(
        [admitted(), place(), accepted(), first(), ready, place(2, I1, 9), accepted(2, I1), first(2, I1), closed()]
    )
    moving = [line for line in outline(spans) if line[0] == "migration"]
    assert moving == [("migration", "attempt", "i0", 4, 5), ("migration", "attempt", "d0", 5, 6)]
    assert [span.error for span in spans if span.name == "attempt"] == ["", ""]


@pytest.mark.parametrize(
    ("finish", "error"),
    [*((finish, "2 s are over") for finish in FINISH_ERRORS), (FinishReason.CANCELLED, "")],
)
def test_how_it_ended(finish: FinishReason, error: str) -> None:
    spans = trace_spans([admitted(), closed(finish, Why("end", "2 s are over"))])
    assert [(span.name, span.error) for span in spans] == [("queue", error), ("request", error)]


def test_the_prompts_cached_tokens_are_those_that_were_found_before_its_first_token() -> None:
    said = [admitted(), place(), accepted(), (I0, D, Reused(1, 1, 2, WHY)), first()]
    again = [(I0, D, Returned(1, 1, WHY)), place(2, I1), (I1, D, Reused(1, 2, 99, WHY)), closed()]
    root = next(span for span in trace_spans([*said, *again]) if span.serves)
    assert root.attributes["gen_ai.usage.cache_read.input_tokens"] == 2


def test_names_are_the_same_when_the_records_are_read_again() -> None:
    said = [admitted(), place(), accepted(), first(), closed()]
    assert [span.id for span in trace_spans(said)] == [span.id for span in trace_spans(said)]
    assert trace_spans(said)[0].id == span_id(KEY, "queue", 0, 1)
