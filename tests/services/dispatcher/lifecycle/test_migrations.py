"""Live migration in the core: the target's acceptance or refusal, and the return to the source."""

from dunlin.effects import Address
from dunlin.messages.dispatch import Accepted, Cancel, Place, Ready, Refusal, Refused
from tests.services.dispatcher.factories import A, B, Bench, client, member, only, rows, target


def moving() -> Bench:
    """A request of which two tokens came is ready to go on at B, where A wants to have it."""
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70), (1, 1, 4, 71)))
    return bench


def test_the_next_attempt_goes_where_the_source_says_and_the_source_is_let_go() -> None:
    bench = moving()
    sent = bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    place = only(sent, Place)
    assert (target(sent, Place), place.attempt, place.handle, list(place.tokens)) == ([B], 2, 7, [5, 6, 7, 70, 71])
    sent = bench.give(B, Accepted(1, 2, 1))
    assert (target(sent, Cancel), only(sent, Cancel).attempt) == ([A], 1)


def test_after_a_targets_refusal_the_request_returns_to_its_source() -> None:
    bench = moving()
    bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    sent = bench.give(B, Refused(1, 2, Refusal.FULL))
    assert (target(sent, Place), only(sent, Place).attempt) == ([A], 3)
    assert target(bench.give(A, Accepted(1, 3, 1)), Cancel) == []


def test_a_source_that_refuses_it_is_no_migration_source_any_more() -> None:
    """As one that is being emptied does, which has lost it meanwhile."""
    bench = moving()
    bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    bench.view(member(B, suspect=True), base_version=1)
    request = bench.core.journal.get(1)
    assert request is not None
    assert (request.instance, request.attempt) == (A, 3)
    assert bench.give(A, Refused(1, 3, Refusal.DRAINING)) == []
    sent = bench.view(member(A, draining=True), member(B), base_version=2)
    assert (target(sent, Place), only(sent, Place).attempt) == ([B], 4)
    assert bench.core.journal.by_reader(client("c")) is request


def test_a_request_whose_target_is_gone_returns_to_its_source() -> None:
    bench = moving()
    sent = bench.give(A, Ready(1, 1, Address("instance", "gone", 99), handle=7, tokens=4))
    assert (target(sent, Place), only(sent, Place).attempt) == ([A], 2)
    assert target(bench.give(A, Accepted(1, 2, 1)), Cancel) == []
