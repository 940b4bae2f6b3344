"""Spans: one trace per request, its phases below it in order, each decision with its reason."""

from collections.abc import Iterable
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Continued,
    Place,
    Preempted,
    Ready,
    Refusal,
    Refused,
    Returned,
    Reused,
)
from dunlin.messages.lifecycle import Admitted, CallOrigin, Closed, FirstToken
from dunlin.messages.pool import ReserveRegion
from dunlin.messages.types import Figure, FinishReason, Region, RejectedOption, Why, i32
from dunlin.telemetry.explain import DecisionRecord
from dunlin.telemetry.request_tracer import RequestTracer
from dunlin.telemetry.spans import MOST_EVENTS, Span
from dunlin.telemetry.trace_context import span_id, trace_context

D = Address("dispatcher", "d0", 0xC)
D1 = Address("dispatcher", "d1", 0xD)
I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
KV = Address("kvstore", "kv", 5)
CLIENT = Address("client", "http-1")
KEY = "req-c-1"
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WHY = Why("least_loaded", "i0", (Figure("load", 0.25),), (RejectedOption("i1", "load 0.5"),))
STOPPED = Why("end", "stop")

Said = tuple[Address, Address, Any]


def place(attempt: int = 1, instance: Address = I0, handle: int = 0) -> Said:
    return D, instance, Place(1, attempt, i32([1, 2]), 2, 8, key=KEY, handle=handle, why=WHY)


def admitted(trace: str = "") -> Said:
    return D, CLIENT, Admitted(KEY, trace, Why("door admission", "queue"))


def accepted(attempt: int = 1, instance: Address = I0) -> Said:
    return instance, D, Accepted(1, attempt, 40, why=WHY)


def first(attempt: int = 1, instance: Address = I0) -> Said:
    return D, CLIENT, FirstToken(KEY, attempt, instance, WHY)


def closed(finish: FinishReason = FinishReason.STOP, why: Why = STOPPED) -> Said:
    return D, CLIENT, Closed(KEY, finish, 5, why=why)


def told(said: Iterable[Said], tracer: RequestTracer | None = None) -> list[Span]:
    """The spans of records that are one second apart, from second 100 on."""
    tracer = RequestTracer() if tracer is None else tracer
    for index, parts in enumerate(said):
        tracer.add(DecisionRecord(100.0 + index, *parts))
    return tracer.take_finished(1e9)


def outline(spans: list[Span]) -> list[tuple[str, str, str, float, float]]:
    """Name, parent's name, process, start and end, by start (the outer one first)."""
    names = {span.id: span.name for span in spans}
    ordered = sorted(spans, key=lambda span: (span.start_s, -span.end_s, span.name != "attempt"))
    return [
        (span.name, names.get(span.parent, ""), span.process.name, span.start_s - 100, span.end_s - 100)
        for span in ordered
    ]


def test_a_request_that_runs_through() -> None:
    spans = told([admitted(), place(), accepted(), first(), closed()])
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
    spans = told([admitted(GIVEN), place(), accepted(), first(), closed()])
    root = next(span for span in spans if span.name == "request")
    assert (root.trace, root.parent) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert {span.trace for span in spans} == {root.trace}


def test_a_trace_that_its_client_does_not_want_is_not_made() -> None:
    assert told([admitted(GIVEN[:-2] + "00"), place(), accepted(), first(), closed()]) == []


def test_preemption_and_what_came_back() -> None:
    region = ReserveRegion(3, D, 1, 1, Region(0, 2, 0, 8), 4096, "fp32", "w", WHY)
    said = [admitted(), place(), accepted(), first(), (I0, D, Preempted(1, 1, WHY)), (I0, KV, region)]
    spans = told([*said, (I0, D, Continued(1, 1, 41, 6, 2, WHY)), closed()])
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
    spans = told(
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
    spans = told([admitted(), place(), accepted(), first(), cancel, place(2, I1), closed()])
    attempts = [span for span in spans if span.name == "attempt"]
    assert [span.error for span in attempts] == ["cancel: the instance is suspect", ""]
    assert [span.end_s for span in attempts] == [104.0, 106.0]


def test_a_refused_hand_out_waits_in_the_queue_again() -> None:
    spans = told([admitted(), place(), (I0, D, Refused(1, 1, Refusal.FULL, WHY)), place(2, I1), closed()])
    assert [line[0] for line in outline(spans)] == [
        "request", "queue", "attempt", "placement", "queue", "attempt", "placement",
    ]  # fmt: skip
    assert [span.error for span in spans if span.name == "attempt"] == ["refused", ""]


def test_a_migration_is_a_phase_between_two_attempts() -> None:
    ready = (I0, D, Ready(1, 1, I1, 9, 6, WHY))
    spans = told(
        [admitted(), place(), accepted(), first(), ready, place(2, I1, 9), accepted(2, I1), first(2, I1), closed()]
    )
    moving = [line for line in outline(spans) if line[0] == "migration"]
    assert moving == [("migration", "attempt", "i0", 4, 5), ("migration", "attempt", "d0", 5, 6)]
    assert [span.error for span in spans if span.name == "attempt"] == ["", ""]


@pytest.mark.parametrize(
    ("finish", "error"),
    [(FinishReason.DEADLINE, "2 s are over"), (FinishReason.ERROR, "2 s are over"), (FinishReason.CANCELLED, "")],
)
def test_how_it_ended(finish: FinishReason, error: str) -> None:
    spans = told([admitted(), closed(finish, Why("end", "2 s are over"))])
    assert [(span.name, span.error) for span in spans] == [("queue", error), ("request", error)]


def test_a_refusal_at_the_door_is_one_span_of_its_clients_trace() -> None:
    (span,) = told([(D, CLIENT, Closed("", FinishReason.ERROR, 0, GIVEN, Why("door admission", "refuse: FULL")))])
    assert (span.name, span.parent, span.error) == ("request", 0xB7AD6B7169203331, "refuse: FULL")


def test_a_refused_request_is_not_named_by_what_its_client_made_up() -> None:
    origin = CallOrigin("http", "chat", "no-such-model", "acme", "[::1]:8000")
    refused = Closed(
        "", FinishReason.ERROR, why=Why("door admission", "refuse: unknown_model"), origin=origin, error="unknown_model"
    )
    (span,) = told([(D, CLIENT, refused)])
    assert (span.name, span.serves) == ("chat", True)
    assert (span.attributes["error.type"], span.attributes["dunlin.tenant"]) == ("unknown_model", "acme")
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("::1", 8000)


def test_the_prompts_cached_tokens_are_those_that_were_found_before_its_first_token() -> None:
    said = [admitted(), place(), accepted(), (I0, D, Reused(1, 1, 2, WHY)), first()]
    again = [(I0, D, Returned(1, 1, WHY)), place(2, I1), (I1, D, Reused(1, 2, 99, WHY)), closed()]
    root = next(span for span in told([*said, *again]) if span.serves)
    assert root.attributes["gen_ai.usage.cache_read.input_tokens"] == 2


def test_records_of_several_processes_are_put_in_order_first() -> None:
    records = [
        DecisionRecord(100.0 + index, *parts)
        for index, parts in enumerate([admitted(), place(), accepted(), first(), closed()])
    ]
    tracer = RequestTracer(patience_s=0.5)
    for index in (2, 0, 3, 1, 4):
        tracer.add(records[index])
    assert tracer.take_finished(100.4) == []
    early = tracer.take_finished(101.5)
    assert outline(early) == [("queue", "", "d0", 0, 1)]
    assert len(tracer) == 1
    assert len(early + tracer.take_finished(200.0)) == 6
    assert len(tracer) == 0


def test_another_dispatcher_that_adopts_it_goes_on_with_the_trace() -> None:
    taken_over = [(D1, CLIENT, Admitted(KEY, "", Why("adoption", "go on here")))]
    old_end = (D, CLIENT, Closed(KEY, FinishReason.CANCELLED, 2, why=Why("end", "d1 goes on with this request")))
    end = (D1, CLIENT, Closed(KEY, FinishReason.STOP, 5, why=STOPPED))
    spans = told([admitted(), place(), accepted(), first(), *taken_over, old_end, end])
    root = next(span for span in spans if span.name == "request")
    assert (root.process, root.end_s, root.attributes["dunlin.finish"]) == (D1, 106.0, "stop")
    decode = next(span for span in spans if span.name == "decode")
    assert [event.name for event in decode.events] == ["Admitted", "Closed"]


def test_names_are_the_same_when_the_records_are_read_again() -> None:
    said = [admitted(), place(), accepted(), first(), closed()]
    assert [span.id for span in told(said)] == [span.id for span in told(said)]
    assert told(said)[0].id == span_id(KEY, "queue", 0, 1)


def test_stories_and_events_are_bounded() -> None:
    tracer = RequestTracer(most_stories=2)
    said = [(D, CLIENT, Admitted(f"req-c-{number}", "", WHY)) for number in range(1, 5)]
    spans = told(said, tracer)
    assert (len(tracer), tracer.truncated_total) == (2, 2)
    assert [(span.name, span.error) for span in spans] == [
        ("queue", "no end was recorded"),
        ("request", "no end was recorded"),
    ] * 2
    many = [(D, I1, Cancel(1, 0, WHY)) for _ in range(MOST_EVENTS + 7)]
    queue = next(span for span in told([admitted(), *many, closed()]) if span.name == "queue")
    assert (len(queue.events), queue.attributes["dunlin.events_left_out"]) == (MOST_EVENTS, 7)


def test_clocks_that_disagree_make_no_negative_span() -> None:
    tracer = RequestTracer()
    for at_s, parts in ((100.0, admitted()), (101.0, place()), (100.5, accepted()), (102.0, closed())):
        tracer.add(DecisionRecord(at_s, *parts))
    assert all(span.end_s >= span.start_s for span in tracer.take_finished(1e9))
