"""Spans of a request's attempts, from the records that name it."""

from dunlin.effects import Address
from dunlin.messages.declare import Hold
from dunlin.messages.subjects import References
from services.monitor.attempt_spans import AttemptSpan, attempt_spans

I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
FIRST, SECOND = (1, 5), (2, 9)


def record(hold: Hold | None, instance: Address | None = I0, attempt: int = 1, **fields: int) -> References:
    return References(request=FIRST, instance=instance, attempt=attempt, hold=hold, **fields)  # type: ignore[arg-type]


def test_an_attempt_runs_from_its_offer_to_its_end() -> None:
    records = [
        (1.0, record(Hold.OFFERED, ticket=4)),
        (2.0, record(Hold.BEGINS, sequence=7)),
        (5.0, record(Hold.ENDS)),
    ]
    assert attempt_spans(records) == [AttemptSpan(I0, 1, 1.0, 5.0, 5.0, False, (7,), (4,))]


def test_the_first_end_counts_and_without_one_the_span_is_open() -> None:
    begun = (1.0, record(Hold.BEGINS))
    (span,) = attempt_spans([begun, (4.0, record(Hold.ENDS)), (6.0, record(Hold.ENDS))])
    assert (span.end_s, span.last_s) == (4.0, 6.0)
    (span,) = attempt_spans([begun, (3.0, record(None))])
    assert (span.end_s, span.last_s) == (None, 3.0)


def test_the_offer_of_a_newer_attempt_ends_the_older_one() -> None:
    records = [(1.0, record(Hold.OFFERED)), (4.0, record(Hold.OFFERED, I1, 2)), (9.0, record(Hold.ENDS, I1, 2))]
    assert [(span.instance, span.start_s, span.end_s) for span in attempt_spans(records)] == [
        (I0, 1.0, 4.0),
        (I1, 4.0, 9.0),
    ]


def test_attempts_are_told_apart_by_their_instance_and_by_their_number() -> None:
    records = [
        (1.0, record(Hold.BEGINS, sequence=7)),
        (2.0, record(Hold.BEGINS, I0, 2, sequence=8)),
        (3.0, record(Hold.BEGINS, I1, 2, sequence=9)),
        (4.0, record(Hold.ENDS)),
    ]
    assert attempt_spans(records) == [
        AttemptSpan(I0, 1, 1.0, 4.0, 4.0, False, (7,), ()),
        AttemptSpan(I0, 2, 2.0, None, 2.0, False, (8,), ()),
        AttemptSpan(I1, 2, 3.0, None, 3.0, False, (9,), ()),
    ]


def test_an_attempt_waits_while_its_newest_record_says_so() -> None:
    offered = (1.0, record(Hold.OFFERED))
    assert attempt_spans([offered])[0].starts_waiting
    assert not attempt_spans([offered, (2.0, record(Hold.BEGINS))])[0].starts_waiting
    assert attempt_spans([offered, (2.0, record(Hold.BEGINS)), (3.0, record(Hold.WAITS))])[0].starts_waiting


def test_records_that_open_nothing_make_no_span() -> None:
    assert attempt_spans([(1.0, record(Hold.ENDS)), (2.0, record(Hold.OFFERED, None))]) == []


def test_each_dispatcher_counts_its_own_attempts() -> None:
    adopted = References(request=SECOND, instance=I0, attempt=2, hold=Hold.BEGINS)
    records = [(1.0, record(Hold.BEGINS)), (2.0, adopted), (3.0, record(Hold.ENDS))]
    assert [(span.attempt, span.start_s, span.end_s) for span in attempt_spans(records)] == [
        (1, 1.0, 3.0),
        (2, 2.0, None),
    ]
