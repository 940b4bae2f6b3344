"""The journal: one story in every index, an order for those that wait, and a table of what may follow what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages.types import RequestClass
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import TRANSITIONS, Request, RequestState
from services.dispatcher.requests.tenant_shares import FIRST_GUESS_TOKENS
from tests.services.dispatcher.factories import A, B, Bench, client, member, submit

INTERACTIVE, BATCH = RequestClass


def opened(journal: Journal, number: int, **overrides: object) -> list[Request]:
    return [journal.add(client(n), submit(**overrides), 1.5) for n in range(number)]  # type: ignore[arg-type]


def test_a_new_request_waits_with_a_copy_of_its_prompt() -> None:
    journal = Journal()
    asked = submit([5, 6])
    request = journal.add(client("c"), asked, 1.5)
    assert (request.number, request.attempt, request.state, request.submitted_s) == (1, 0, RequestState.QUEUED, 1.5)
    request.tokens.append(7)
    assert list(asked.tokens) == [5, 6]
    assert (request.prompt_tokens, request.generated_tokens) == (2, 1)
    assert (len(journal), journal.queued) == (1, 1)


def test_numbers_are_never_used_again() -> None:
    journal = Journal()
    (first,) = opened(journal, 1)
    journal.remove(first)
    assert opened(journal, 1)[0].number == 2


def test_requests_that_were_dispatched_before_wait_ahead_oldest_first() -> None:
    journal = Journal()
    requests = opened(journal, 5)
    for request in requests[1:4]:
        journal.dispatch(request, A)
    for index in (3, 1, 2):
        journal.requeue(requests[index], "lost")
    assert [request.number for request in journal.waiting(INTERACTIVE, 10)] == [2, 3, 4, 1, 5]
    assert [request.number for request in journal.waiting(INTERACTIVE, 2)] == [2, 3]
    assert requests[1].last_outcome == (str(A), "lost")
    assert requests[1].instance is None


def test_a_name_that_no_instance_knows_gives_no_turn_before_others() -> None:
    journal = Journal()
    first, resumed, named, last = (
        journal.add(client(n), asked, 1.5, may_be_held=asked.may_be_held)
        for n, asked in enumerate((submit(), submit(key="req-9-1"), submit(idempotency="n/0", digest=b"d"), submit()))
    )
    for request in (named, resumed):
        journal.requeue_not_adopted(request, "not held")
    journal.check_integrity()
    assert journal.waiting(INTERACTIVE, 10) == [resumed, first, last, named]


def test_a_name_that_no_instance_knows_has_its_tenants_turn() -> None:
    journal = Journal()
    opened(journal, 3, request_class=BATCH, tenant="many")
    asked = submit(idempotency="n/0", digest=b"d", request_class=BATCH, tenant="many")
    named = journal.add(client("named"), asked, 1.5, may_be_held=True)
    journal.requeue_not_adopted(named, "not held")
    other = journal.add(client("other"), submit(request_class=BATCH, tenant="one"), 1.5)
    journal.check_integrity()
    assert [request.number for request in journal.waiting(BATCH, 10)] == [1, other.number, 2, 3, named.number]


def test_each_class_has_a_queue_of_its_own() -> None:
    journal = Journal()
    (batch,) = opened(journal, 1, request_class=BATCH)
    requests = [journal.add(client(n), submit(), 1.5) for n in (5, 6)]
    journal.dispatch(requests[1], A)
    journal.requeue(requests[1], "lost")
    assert (journal.queued, journal.queued_of(INTERACTIVE), journal.queued_of(BATCH)) == (3, 2, 1)
    assert journal.waiting(INTERACTIVE, 9) == [requests[1], requests[0]]
    assert journal.waiting(BATCH, 9) == [batch]
    assert journal.all_waiting() == [requests[1], requests[0], batch]
    journal.check_integrity()


def test_the_fence_asks_for_the_instance_and_the_attempt() -> None:
    journal = Journal()
    (request,) = opened(journal, 1)
    assert journal.current_attempt(A, 1, 0) is None
    journal.dispatch(request, A)
    assert journal.current_attempt(A, 1, 1) is request
    assert journal.current_attempt(B, 1, 1) is None
    assert journal.current_attempt(A, 1, 2) is None
    assert journal.current_attempt(A, 2, 1) is None
    journal.requeue(request, "lost")
    assert journal.current_attempt(A, 1, 1) is None


def test_what_an_instance_holds_oldest_first() -> None:
    journal = Journal()
    requests = opened(journal, 3)
    for request in reversed(requests):
        journal.dispatch(request, A)
    assert journal.ordered_requests_at(A) == requests
    assert journal.ordered_requests_at(B) == []
    assert journal.remove(requests[0]) == A
    assert journal.ordered_requests_at(A) == requests[1:]


def test_an_ended_request_is_forgotten_everywhere() -> None:
    journal = Journal()
    (request,) = opened(journal, 1)
    assert journal.remove(request) is None
    assert request.state is RequestState.ENDED
    assert journal.get(1) is None
    assert journal.by_reader(client(0)) is None
    assert (len(journal), journal.queued, journal.all_waiting()) == (0, 0, [])


@pytest.mark.parametrize("state", RequestState)
def test_the_table_is_kept(state: RequestState) -> None:
    for to in (RequestState.RUNNING, RequestState.PREEMPTED):
        journal = Journal()
        (request,) = opened(journal, 1)
        request.state = state
        assert journal.advance(request, to) is (to in TRANSITIONS[state])
        assert request.state is (to if to in TRANSITIONS[state] else state)


def test_a_transition_that_the_table_forbids_is_a_bug() -> None:
    journal = Journal()
    (request,) = opened(journal, 1)
    with pytest.raises(AssertionError, match="QUEUED to QUEUED"):
        journal.requeue(request, "lost")
    journal.dispatch(request, A)
    with pytest.raises(AssertionError, match="DISPATCHED to DISPATCHED"):
        journal.dispatch(request, B)


def test_the_least_worth_running_is_one_token() -> None:
    journal = Journal()
    assert opened(journal, 1, max_tokens=None)[0].max_length == 4
    assert opened(journal, 1, max_tokens=7)[0].max_length == 10


@given(st.lists(st.tuples(st.sampled_from(["open", "out", "back", "run", "end"]), st.integers(0, 7))))
def test_the_indexes_agree_whatever_happens(steps: list[tuple[str, int]]) -> None:
    journal = Journal()
    alive: list[Request] = []
    for step, (what, index) in enumerate(steps):
        request = alive[index % len(alive)] if alive else None
        if what == "open":
            alive.append(journal.add(client(step), submit(), 0.0))
        elif request is not None:
            apply(journal, alive, request, what, (A, B)[index % 2])
        journal.check_integrity()
    assert len(journal) == len(alive)


def apply(journal: Journal, alive: list[Request], request: Request, what: str, instance: Address) -> None:
    if what == "out" and request.state is RequestState.QUEUED:
        journal.dispatch(request, instance)
    elif what == "back" and request.state is not RequestState.QUEUED:
        journal.requeue(request, "lost")
    elif what == "run":
        journal.advance(request, RequestState.RUNNING)
    elif what == "end":
        alive.remove(request)
        journal.remove(request)


def test_the_check_sees_a_broken_index() -> None:
    journal = Journal()
    requests = opened(journal, 2)
    requests[0].state = RequestState.RUNNING
    with pytest.raises(AssertionError):
        journal.check_integrity()


def test_what_was_dispatched_before_counts_against_every_tenants_new_requests() -> None:
    journal = Journal()
    (lost,) = opened(journal, 1, request_class=BATCH, tenant="a")
    journal.dispatch(lost, A)
    journal.requeue(lost, "lost")
    journal.add(client("c"), submit(request_class=BATCH, tenant="a"), 1.5)
    assert journal.queued_against(submit(request_class=BATCH, tenant="b")) == 1
    assert journal.queued_against(submit(request_class=BATCH, tenant="a")) == 2


def test_a_batch_request_without_a_limit_is_charged_for_what_is_expected_of_it() -> None:
    """As its turn was reckoned: by what its client asked for, not by what its instance leaves."""
    bench = Bench().fleet(member(A, capacity_slots=100, free_slots=100))
    bench.give(client("c"), submit(request_class=BATCH, max_tokens=None))
    request = bench.core.journal.get(1)
    assert request is not None
    assert (request.max_tokens, request.charged_tokens) == (97, 3 + FIRST_GUESS_TOKENS)
