"""Requests that another dispatcher took, and that are adopted back: an older query's answers count for no newer one."""

from dunlin.effects import Address
from dunlin.messages.dispatch import Adopt, AdoptedElsewhere, Cancel, NotHeld, Place, Ready
from dunlin.messages.door import SubmitRejected
from dunlin.messages.lifecycle import Admitted
from dunlin.messages.types import RequestClass
from services.dispatcher.requests.timers import AdoptionQueryRetry, AdoptionQueryTimeout
from tests.services.dispatcher import factories
from tests.services.dispatcher.adoption_factories import Bench, adopted, named, resumed
from tests.services.dispatcher.factories import A, B, client, member, messages, only, rows, submit, target

OTHER = Address("dispatcher", "e", 99)


def asking_again() -> factories.Bench:
    """A and B are asked about attempt 2; B has not answered about attempt 1, which A ran."""
    bench = Bench(adoption__ask_timeout_s=5.0).fleet(member(A), member(B))
    bench.give(client("c"), resumed())
    bench.give(A, adopted(72))
    bench.give(A, AdoptedElsewhere(1, 1, OTHER), 3.0)
    assert [adopt.attempt for adopt in messages(bench.fire(AdoptionQueryRetry), Adopt)] == [2, 2]
    return bench


def test_a_late_no_to_the_older_query_is_no_answer_to_the_newer_one() -> None:
    bench = asking_again()
    assert bench.give(B, NotHeld(1, 1)) == []
    assert bench.give(A, NotHeld(1, 2)) == [], "B is awaited"
    assert only(bench.give(B, NotHeld(1, 2)), Place).attempt == 3


def test_a_late_yes_to_the_older_query_is_cancelled() -> None:
    bench = asking_again()
    assert [(cancel.request, cancel.attempt) for cancel in messages(bench.give(B, adopted(72)), Cancel)] == [(1, 1)]
    assert bench.core.report().stale_total == 1
    assert bench.core.journal.adopting == 1


def test_the_timeout_of_the_older_query_does_not_end_the_newer_one() -> None:
    bench = asking_again()
    assert bench.fire(AdoptionQueryTimeout) == []
    assert (bench.now_s, bench.core.journal.adopting) == (5.0, 1)
    assert only(bench.fire(AdoptionQueryTimeout), Place).attempt == 3
    assert bench.now_s == 9.0


def test_what_was_reserved_for_it_where_it_ran_is_free() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.give(A, AdoptedElsewhere(1, 1, OTHER))
    ((_, candidate),) = bench.core.fleet.candidates(1, 1, [])
    assert (candidate.free_slots, candidate.requests) == (1000, 0)


def test_what_was_admitted_here_is_queued_again_though_the_queue_is_full() -> None:
    bench = Bench(admission__max_queued=1).fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(A, AdoptedElsewhere(1, 2, OTHER))
    bench.view(member(A, free_slots=0, waiting=16))
    bench.give(client("waits"), submit())
    bench.fire(AdoptionQueryRetry)
    assert messages(bench.give(A, NotHeld(1, 3)), SubmitRejected) == []
    waiting = bench.core.journal.waiting(RequestClass.INTERACTIVE, 9)
    assert [request.number for request in waiting] == [1, 2], "and ahead of new ones"
    assert target(bench.view(member(A)), Place) == [A, A]


def test_one_that_was_moving_does_not_return_to_its_source() -> None:
    """The dispatcher that took it has ended what the source held."""
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)))
    assert target(bench.give(A, Ready(1, 1, B, handle=7, tokens=3)), Place) == [B]
    bench.give(B, AdoptedElsewhere(1, 2, OTHER))
    bench.view(member(A, free_slots=10), member(B))
    bench.fire(AdoptionQueryRetry)
    assert bench.give(A, NotHeld(1, 3)) == []
    assert target(bench.give(B, NotHeld(1, 3)), Place) == [B]


def test_the_name_of_another_request_here_is_not_taken_over() -> None:
    bench = Bench().fleet(member(A))
    first = bench.run("c")
    bench.give(client("d"), named())
    sent = bench.give(A, adopted(70, request=2, key=first.key))
    assert only(sent, Admitted).request == "req-2a-2"
    one = bench.core.journal.by_key(first.key)
    assert one is not None
    assert one.number == 1
