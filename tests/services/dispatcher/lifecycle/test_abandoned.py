"""Requests whose last reader is gone: one with an idempotency key runs on for a while, so that a retry finds it."""

from dunlin.effects import Gone
from dunlin.messages.dispatch import Cancel, NotHeld
from dunlin.messages.door import Abort, Delta
from dunlin.messages.fleet import DispatcherReport
from dunlin.messages.lifecycle import Closed
from dunlin.messages.types import FinishReason
from services.dispatcher.requests.timers import AbandonTimeout
from tests.services.dispatcher import factories
from tests.services.dispatcher.adoption_factories import Bench, named
from tests.services.dispatcher.factories import A, client, member, messages, only, rows, target


def left_at(leaves_s: float) -> factories.Bench:
    """A named request that has its first token, and no reader from that time on."""
    bench = Bench(idempotency__grace_s=30.0).fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(A, rows((1, 2, 3, 70)))
    assert bench.give(client("c"), Gone("left"), leaves_s) == []
    return bench


def test_it_runs_on_and_is_cancelled_when_nobody_came_back_in_time() -> None:
    bench = left_at(5.0)
    assert bench.give(A, rows((1, 2, 4, 71))) == []
    sent = bench.fire(AbandonTimeout)
    assert (bench.now_s, target(sent, Cancel)) == (35.0, [A])
    assert bench.core.report() == DispatcherReport(cancelled_total=1, tokens_total=2)


def test_its_end_is_recorded_under_its_id() -> None:
    bench = left_at(5.0)
    bench.fire(AbandonTimeout)
    (event,) = bench.events
    assert (event.to, only(bench.events, Closed).finish) == (client("req-2a-1"), FinishReason.CANCELLED)
    why = only(bench.events, Closed).why
    assert why is not None
    assert why.chosen == "no client came back for it within 30 s"


def test_a_reader_that_came_back_keeps_it() -> None:
    bench = left_at(5.0)
    assert list(only(bench.give(client("d"), named(), 34.0), Delta).tokens) == [70]
    assert bench.fire(AbandonTimeout) == []
    assert len(messages(bench.give(A, rows((1, 2, 4, 71))), Delta)) == 1


def test_each_absence_has_the_whole_time() -> None:
    bench = left_at(5.0)
    bench.give(client("d"), named(), 10.0)
    bench.give(client("d"), Gone("left"), 20.0)
    assert bench.fire(AbandonTimeout) == [], "that of the first absence"
    assert target(bench.fire(AbandonTimeout), Cancel) == [A]
    assert bench.now_s == 50.0


def test_one_of_two_readers_that_leaves_begins_no_absence() -> None:
    bench = left_at(5.0)
    for name in ("d", "e"):
        bench.give(client(name), named(), 10.0)
    assert bench.give(client("d"), Gone("left"), 11.0) == []
    assert bench.last == [], "no timer is set"


def test_a_stop_string_of_the_only_reader_ends_it_at_once() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(A, rows((1, 2, 3, 70)))
    assert target(bench.give(client("c"), Abort(FinishReason.STOP)), Cancel) == [A]
    assert bench.core.report().finished_total == 1


def test_one_that_ends_before_the_time_is_over_ends_once() -> None:
    bench = left_at(5.0)
    bench.give(A, rows((1, 2, 4, 71), finish=FinishReason.LENGTH))
    assert bench.fire(AbandonTimeout) == []
    assert bench.core.report() == DispatcherReport(finished_total=1, tokens_total=2)
