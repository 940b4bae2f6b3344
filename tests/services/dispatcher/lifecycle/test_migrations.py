"""Live migration in the core: the target's acceptance or refusal, and the return to the source."""

import pytest

from dunlin.effects import Address, Gone
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place, Ready, Refusal, Refused
from dunlin.messages.door import Abort
from dunlin.messages.types import RequestClass, Why
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


def test_what_the_source_had_reserved_for_it_is_free_once_it_moves() -> None:
    bench = moving()
    bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    free = {address: one.free_slots for address, one in bench.core.fleet.candidates(1, 1, [])}
    assert free == {A: 1000, B: 5}


def test_the_reason_of_the_move_goes_with_it() -> None:
    bench = moving()
    place = only(bench.give(A, Ready(1, 1, B, handle=7, tokens=4, why=Why("migration", "balance"))), Place)
    assert place.why is not None
    assert (place.why.policy, place.why.chosen) == ("migration", "balance")
    assert [(each.option, each.reason) for each in place.why.rejected] == [(str(A), f"moves to {B}")]


def test_an_attempt_that_is_over_moves_nowhere_and_is_cancelled_at_its_source() -> None:
    bench = moving()
    bench.give(client("c"), Abort())
    bench.give(A, Ended(1, 1))
    sent = bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    assert [(each.to, each.message) for each in sent if not isinstance(each.message, Cancel)] == []
    assert (target(sent, Cancel), only(sent, Cancel).attempt) == ([A], 1)
    assert bench.core.report().stale_total == 1


def test_a_request_whose_source_is_gone_when_its_target_refuses_goes_elsewhere() -> None:
    bench = moving()
    bench.give(A, Ready(1, 1, B, handle=7, tokens=4))
    bench.give(A, Gone("killed"))
    assert bench.give(B, Refused(1, 2, Refusal.FULL)) == []
    place = only(bench.view(member(B), base_version=1), Place)
    assert (place.attempt, place.handle, list(place.tokens)) == (3, 0, [5, 6, 7, 70, 71])


def test_a_batch_request_that_its_target_refuses_returns_to_its_source_too() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c", request_class=RequestClass.BATCH)
    bench.give(A, rows((1, 1, 3, 70)))
    bench.give(A, Ready(1, 1, B, handle=7, tokens=3))
    bench.view(member(A, free_slots=0, waiting=16, batch_waiting=16), base_version=1)
    assert target(bench.give(B, Refused(1, 2, Refusal.FULL)), Place) == [A]


@pytest.mark.parametrize("state", [{"ready": False}, {"suspect": True}], ids=str)
def test_a_target_that_cannot_take_it_now_is_not_asked(state: dict[str, bool]) -> None:
    bench = moving()
    bench.view(member(B, **state), base_version=1)
    assert target(bench.give(A, Ready(1, 1, B, handle=7, tokens=4)), Place) == [A]
