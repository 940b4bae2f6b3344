"""The traces of all requests: records in order of time, sorted by request, and a bound on how many are open."""

from dunlin.messages.dispatch import Cancel, Tokens
from dunlin.messages.fleet import DispatcherReport, MemberStatus
from dunlin.messages.lifecycle import Admitted, CallOrigin, Closed
from dunlin.messages.types import FinishReason, Why, f32, i8, i32, i64
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.request_tracer import RequestTracer
from dunlin.telemetry.spans import MOST_EVENTS
from dunlin.telemetry.trace_context import trace_context
from tests.telemetry.request_records import (
    CLIENT,
    D1,
    GIVEN,
    I0,
    I1,
    KEY,
    STOPPED,
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

UNWANTED = GIVEN[:-2] + "00"


def test_an_end_without_a_reason_of_its_own_ends_the_trace() -> None:
    """As a dispatcher of a later version may say it: the monitor must not end for it."""
    root = next(span for span in trace_spans([admitted(), closed(FinishReason.RUNNING)]) if span.name == "request")
    assert root.attributes["error.type"] == "_OTHER"


def test_a_trace_that_its_client_does_not_want_is_not_made() -> None:
    assert trace_spans([admitted(UNWANTED), place(), accepted(), first(), closed()]) == []


def test_a_refusal_at_the_door_is_one_span_of_its_clients_trace() -> None:
    refused = Closed("", FinishReason.ERROR, 0, GIVEN, Why("door admission", "refuse: FULL"))
    (span,) = trace_spans([(D, CLIENT, refused)])
    assert (span.name, span.parent, span.error) == ("request", 0xB7AD6B7169203331, "refuse: FULL")


def test_a_refused_request_is_not_named_by_what_its_client_made_up() -> None:
    origin = CallOrigin("http", "chat", "no-such-model", "acme", "[::1]:8000")
    refused = Closed(
        "", FinishReason.ERROR, why=Why("door admission", "refuse: unknown_model"), origin=origin, error="unknown_model"
    )
    (span,) = trace_spans([(D, CLIENT, refused)])
    assert (span.name, span.serves) == ("chat", True)
    assert (span.attributes["error.type"], span.attributes["dunlin.tenant"]) == ("unknown_model", "acme")
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("::1", 8000)


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
    spans = trace_spans([admitted(), place(), accepted(), first(), *taken_over, old_end, end])
    root = next(span for span in spans if span.name == "request")
    assert (root.process, root.end_s, root.attributes["dunlin.finish"]) == (D1, 106.0, "stop")
    decode = next(span for span in spans if span.name == "decode")
    assert [event.name for event in decode.events] == ["Admitted", "Closed"]


def test_stories_and_events_are_bounded() -> None:
    tracer = RequestTracer(most_stories=2)
    said = [(D, CLIENT, Admitted(f"req-c-{number}", "", WHY)) for number in range(1, 5)]
    spans = trace_spans(said, tracer)
    assert (len(tracer), tracer.truncated_total) == (2, 2)
    assert [(span.name, span.error) for span in spans] == [
        ("queue", "no end was recorded"),
        ("request", "no end was recorded"),
    ] * 2
    many = [(D, I1, Cancel(1, 0, WHY)) for _ in range(MOST_EVENTS + 7)]
    queue = next(span for span in trace_spans([admitted(), *many, closed()]) if span.name == "queue")
    assert (len(queue.events), queue.attributes["dunlin.events_left_out"]) == (MOST_EVENTS, 7)


def test_clocks_that_disagree_make_no_negative_span() -> None:
    tracer = RequestTracer()
    for at_s, parts in ((100.0, admitted()), (101.0, place()), (100.5, accepted()), (102.0, closed())):
        tracer.add(DecisionRecord(at_s, *parts))
    assert all(span.end_s >= span.start_s for span in tracer.take_finished(1e9))


def test_two_requests_at_once_are_two_traces() -> None:
    other = (D, CLIENT, Admitted("req-c-2", "", WHY))
    end = (D, CLIENT, Closed("req-c-2", FinishReason.STOP, 5, why=STOPPED))
    tracer = RequestTracer()
    assert len({span.trace for span in trace_spans([admitted(), other, closed()], tracer)}) == 1
    assert len(tracer) == 1
    (queue, root) = trace_spans([end], tracer)
    assert queue.trace == root.trace == trace_context("", "req-c-2").trace


def test_a_record_by_number_belongs_to_the_request_of_its_dispatcher() -> None:
    """Both dispatchers have a request 1; an instance's answer is told apart by the dispatcher it goes to."""
    said = [admitted(), place(), (D1, CLIENT, Admitted("req-d-1", "", WHY)), accepted(), first(), closed()]
    tracer = RequestTracer()
    spans = trace_spans(said, tracer)
    assert {span.trace for span in spans} == {trace_context("", KEY).trace}
    assert [span.name for span in spans].count("prefill") == 1
    assert len(tracer) == 1


def test_records_of_no_request_and_those_that_come_after_an_end_make_no_trace() -> None:
    tracer = RequestTracer()
    assert trace_spans([(D, CLIENT, WHY), accepted(), closed()], tracer) == []
    assert len(tracer) == 0


def test_a_request_whose_trace_its_client_does_not_want_is_forgotten_at_its_end() -> None:
    tracer = RequestTracer()
    trace_spans([admitted(UNWANTED), place(), accepted(), first()], tracer)
    assert len(tracer) == 1
    trace_spans([closed()], tracer)
    assert len(tracer) == 0


def test_unwanted_traces_are_bounded_and_not_exported_when_they_are_cut() -> None:
    tracer = RequestTracer(most_stories=2)
    said = [(D, CLIENT, Admitted(f"req-c-{number}", UNWANTED, WHY)) for number in range(1, 6)]
    assert trace_spans(said, tracer) == []
    assert (len(tracer), tracer.truncated_total) == (2, 3)


def test_the_dispatcher_that_adopts_a_request_ends_its_unwanted_trace() -> None:
    end = (D1, CLIENT, Closed(KEY, FinishReason.STOP, 5, why=STOPPED))
    tracer = RequestTracer()
    assert trace_spans([admitted(UNWANTED), (D1, CLIENT, Admitted(KEY, UNWANTED, WHY)), end], tracer) == []
    assert len(tracer) == 0


def test_the_cancel_that_follows_an_aborted_requests_end_begins_no_trace() -> None:
    """A dispatcher records that the request ended, then that it cancels the attempt at the instance."""
    tracer = RequestTracer()
    spans = trace_spans([admitted(), place(), closed(FinishReason.CANCELLED), (D, I0, Cancel(1, 1, WHY))], tracer)
    assert [span.name for span in spans].count("request") == 1
    assert len(tracer) == 0


def test_what_is_no_decision_is_no_record() -> None:
    """Whoever opens a stream of reasons may name any message there; the fields of these mean something else."""
    tracer = RequestTracer()
    status = MemberStatus(I0, dispatcher=DispatcherReport())
    tokens = Tokens(i64([1]), i32([1]), i64([5]), i32([2]), f32([0.5]), i8([0]))
    assert trace_spans([(I0, D, status), (I0, D, tokens)], tracer) == []
    assert len(tracer) == 0


def test_records_of_a_clock_that_runs_ahead_are_bounded_too() -> None:
    tracer = RequestTracer(most_waiting=3)
    for number in range(1, 6):
        tracer.add(DecisionRecord(1e6 + number, D, CLIENT, Admitted(f"req-c-{number}", "", WHY)))
    tracer.take_finished(100.0)
    assert len(tracer) == 2
    assert len(tracer.take_finished(1e9)) == 0
    assert len(tracer) == 5
