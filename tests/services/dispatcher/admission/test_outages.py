"""Outages in the core: when one begins, and what it means for new requests and for those that wait."""

from dunlin.effects import Gone, Joined
from dunlin.messages.door import Admitted, Delta, RejectionCode, SubmitRejected
from dunlin.messages.types import FinishReason
from services.dispatcher.requests.timers import OutageTimeout
from tests.services.dispatcher.factories import A, Bench, client, member, messages, only, submit


def test_it_begins_with_the_first_stream_of_a_client() -> None:
    bench = Bench(admission__unavailable_after_s=10.0)
    bench.give(client("c"), Joined(), 5.0)
    assert messages(bench.give(client("c"), submit(), 14.9), Admitted)
    assert only(bench.give(client("d"), submit(), 15.0), SubmitRejected).code is RejectionCode.UNAVAILABLE


def test_it_begins_when_the_last_instance_is_gone() -> None:
    bench = Bench(admission__unavailable_after_s=10.0).fleet(member(A))
    bench.give(A, Gone("killed"), 100.0)
    assert messages(bench.give(client("c"), submit(), 109.9), Admitted)
    rejected = only(bench.give(client("d"), submit(), 110.0), SubmitRejected)
    assert (rejected.code, rejected.detail) == (
        RejectionCode.UNAVAILABLE,
        "no instance has been able to serve for 10 s",
    )


def test_it_is_told_rather_than_that_the_queue_is_full() -> None:
    bench = Bench(admission__unavailable_after_s=10.0, admission__max_queued=1)
    bench.give(client("c"), submit())
    assert only(bench.give(client("d"), submit(), 9.9), SubmitRejected).code is RejectionCode.FULL
    assert only(bench.give(client("d"), submit(), 10.0), SubmitRejected).code is RejectionCode.UNAVAILABLE


def test_what_is_admitted_later_in_it_ends_with_the_next_turn() -> None:
    bench = Bench(admission__unavailable_after_s=1e6, outage__give_up_after_s=60.0)
    bench.give(client("early"), submit(), at_s=5.0)
    assert len(messages(bench.fire(OutageTimeout), Delta)) == 1
    bench.give(client("late"), submit(), at_s=70.0)
    assert only(bench.fire(OutageTimeout), Delta).finish is FinishReason.ERROR
    assert bench.now_s == 125.0
