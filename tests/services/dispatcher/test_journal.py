"""The journal: one story in every index, an order for those that wait, and a table of what may follow what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from services.dispatcher.journal import NEXT, Journal, Request, State
from tests.services.dispatcher.factories import A, B, client, submit


def opened(journal: Journal, number: int, **overrides: object) -> list[Request]:
    return [journal.open(client(n), submit(**overrides), 1.5) for n in range(number)]  # type: ignore[arg-type]


def test_a_new_request_waits_with_a_copy_of_its_prompt() -> None:
    journal = Journal()
    asked = submit([5, 6])
    request = journal.open(client("c"), asked, 1.5)
    assert (request.number, request.attempt, request.state, request.submitted_s) == (1, 0, State.QUEUED, 1.5)
    request.tokens.append(7)
    assert list(asked.tokens) == [5, 6]
    assert (request.prompt_tokens, request.generated) == (2, 1)
    assert (len(journal), journal.queued) == (1, 1)


def test_numbers_are_never_used_again() -> None:
    journal = Journal()
    (first,) = opened(journal, 1)
    journal.end(first)
    assert opened(journal, 1)[0].number == 2


def test_who_was_handed_out_before_waits_ahead_oldest_first() -> None:
    journal = Journal()
    requests = opened(journal, 5)
    for request in requests[1:4]:
        journal.hand_out(request, A)
    for index in (3, 1, 2):
        journal.take_back(requests[index], "lost")
    assert [request.number for request in journal.waiting(10)] == [2, 3, 4, 1, 5]
    assert [request.number for request in journal.waiting(2)] == [2, 3]
    assert requests[1].lost == (str(A), "lost")
    assert requests[1].instance is None


def test_the_fence_asks_for_the_instance_and_the_attempt() -> None:
    journal = Journal()
    (request,) = opened(journal, 1)
    assert journal.current(A, 1, 0) is None
    journal.hand_out(request, A)
    assert journal.current(A, 1, 1) is request
    assert journal.current(B, 1, 1) is None
    assert journal.current(A, 1, 2) is None
    assert journal.current(A, 2, 1) is None
    journal.take_back(request, "lost")
    assert journal.current(A, 1, 1) is None


def test_what_an_instance_holds_oldest_first() -> None:
    journal = Journal()
    requests = opened(journal, 3)
    for request in reversed(requests):
        journal.hand_out(request, A)
    assert journal.held_by(A) == requests
    assert journal.held_by(B) == []
    assert journal.end(requests[0]) == A
    assert journal.held_by(A) == requests[1:]


def test_an_ended_request_is_forgotten_everywhere() -> None:
    journal = Journal()
    (request,) = opened(journal, 1)
    assert journal.end(request) is None
    assert request.state is State.ENDED
    assert journal.get(1) is None
    assert journal.of_client(client(0)) is None
    assert (len(journal), journal.queued, journal.waiting(9)) == (0, 0, [])


@pytest.mark.parametrize("state", State)
def test_the_table_is_kept(state: State) -> None:
    for to in (State.RUNNING, State.PREEMPTED):
        journal = Journal()
        (request,) = opened(journal, 1)
        request.state = state
        assert journal.advance(request, to) is (to in NEXT[state])
        assert request.state is (to if to in NEXT[state] else state)


def test_a_move_that_the_table_forbids_is_a_bug() -> None:
    journal = Journal()
    (request,) = opened(journal, 1)
    with pytest.raises(AssertionError, match="QUEUED to QUEUED"):
        journal.take_back(request, "lost")
    journal.hand_out(request, A)
    with pytest.raises(AssertionError, match="OFFERED to OFFERED"):
        journal.hand_out(request, B)


def test_the_least_worth_running_is_one_token() -> None:
    journal = Journal()
    assert opened(journal, 1, max_tokens=None)[0].longest == 4
    assert opened(journal, 1, max_tokens=7)[0].longest == 10


@given(st.lists(st.tuples(st.sampled_from(["open", "out", "back", "run", "end"]), st.integers(0, 7))))
def test_the_indexes_agree_whatever_happens(steps: list[tuple[str, int]]) -> None:
    journal = Journal()
    alive: list[Request] = []
    for step, (what, index) in enumerate(steps):
        request = alive[index % len(alive)] if alive else None
        if what == "open":
            alive.append(journal.open(client(step), submit(), 0.0))
        elif request is not None:
            apply(journal, alive, request, what, (A, B)[index % 2])
        journal.check_integrity()
    assert len(journal) == len(alive)


def apply(journal: Journal, alive: list[Request], request: Request, what: str, instance: Address) -> None:
    if what == "out" and request.state is State.QUEUED:
        journal.hand_out(request, instance)
    elif what == "back" and request.state is not State.QUEUED:
        journal.take_back(request, "lost")
    elif what == "run":
        journal.advance(request, State.RUNNING)
    elif what == "end":
        alive.remove(request)
        journal.end(request)


def test_the_check_sees_a_broken_index() -> None:
    journal = Journal()
    requests = opened(journal, 2)
    requests[0].state = State.RUNNING
    with pytest.raises(AssertionError):
        journal.check_integrity()
