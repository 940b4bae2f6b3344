"""Tenants' shares of batch work: exact turns by weight, no credit and no arrears, and accounts that are forgotten."""

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from dunlin.messages.types import RequestClass
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request
from services.dispatcher.requests.tenant_shares import FIRST_GUESS_TOKENS, MOST_IDLE_TENANTS, SAMPLES_KEPT, TenantShares
from tests.services.dispatcher.factories import A, client, submit

INTERACTIVE, BATCH = RequestClass
_NAMES = count()


def journal_with(**weights: int) -> Journal:
    journal = Journal()
    journal.shares.set_weights(weights)
    return journal


def queue(journal: Journal, tenant: str, number: int, prompt: int = 6, max_tokens: int = 4) -> list[Request]:
    asked = submit(range(prompt), max_tokens=max_tokens, tenant=tenant, request_class=BATCH)
    return [journal.add(client(next(_NAMES)), asked, 0.0) for _ in range(number)]


def dispatch(journal: Journal, number: int) -> str:
    """Dispatch the first requests in line; the first letters of their tenants."""
    dispatched = ""
    for _ in range(number):
        (request,) = journal.waiting(BATCH, 1)
        journal.dispatch(request, A)
        dispatched += request.submit.tenant[0]
    journal.check_integrity()
    return dispatched


def generate(journal: Journal, request: Request, tokens: int) -> None:
    """The request gets so many tokens, and ends."""
    request.tokens.extend([7] * tokens)
    journal.remove(request)
    journal.check_integrity()


def test_tenants_take_turns_by_weight() -> None:
    journal = journal_with(three=3)
    queue(journal, "one", 9)
    queue(journal, "three", 9)
    assert dispatch(journal, 12) == "ottt" * 3


def test_the_line_is_the_order_in_which_requests_are_dispatched() -> None:
    journal = journal_with(b=2, c=5)
    for tenant, prompt in (("a", 10), ("b", 40), ("c", 7)):
        queue(journal, tenant, 30, prompt)
    line = [request.number for request in journal.waiting(BATCH, 50)]
    dispatched = []
    for _ in line:
        (request,) = journal.waiting(BATCH, 1)
        dispatched.append(request.number)
        journal.dispatch(request, A)
    assert dispatched == line


def test_of_one_tenant_the_oldest_is_first_whatever_its_length() -> None:
    journal = Journal()
    requests = [queue(journal, "a", 1, prompt)[0] for prompt in (90, 5, 40)]
    assert journal.waiting(BATCH, 9) == requests


def test_long_requests_have_fewer_turns() -> None:
    journal = Journal()
    queue(journal, "long", 9, prompt=36, max_tokens=4)
    queue(journal, "short", 99, prompt=6, max_tokens=4)
    assert dispatch(journal, 15) == "lssss" * 3


def test_a_tenant_alone_saves_nothing_up_and_owes_nothing() -> None:
    journal = Journal()
    queue(journal, "early", 50)
    dispatch(journal, 40)
    queue(journal, "late", 50)
    assert dispatch(journal, 8) == "elel" * 2


def test_one_that_had_nothing_queued_for_a_while_begins_where_the_others_are() -> None:
    journal = Journal()
    queue(journal, "back", 1)
    queue(journal, "steady", 50)
    dispatch(journal, 30)
    queue(journal, "back", 9)
    assert dispatch(journal, 6) in ("bsbsbs", "sbsbsb")


def test_one_that_leaves_ahead_is_ahead_when_it_comes_back() -> None:
    journal = Journal()
    queue(journal, "ahead", 1, prompt=96)
    queue(journal, "steady", 50)
    assert dispatch(journal, 2) == "as"
    queue(journal, "ahead", 1)
    assert dispatch(journal, 11) == "ssssssssssa"


def test_one_that_is_ahead_is_remembered_when_all_its_requests_have_ended() -> None:
    journal = Journal()
    (long,) = queue(journal, "ahead", 1, prompt=96)
    queue(journal, "steady", 50)
    assert dispatch(journal, 1) == "a"
    generate(journal, long, 4)
    queue(journal, "ahead", 1)
    assert dispatch(journal, 12) == "sssssssssssa"


def test_a_request_that_ends_early_is_charged_for_what_it_had() -> None:
    journal = Journal()
    first = queue(journal, "a", 9, prompt=10, max_tokens=90)[0]
    queue(journal, "b", 99, prompt=10, max_tokens=0)
    assert dispatch(journal, 5) == "abbbb"
    assert first.charged_tokens == 100
    generate(journal, first, 5)
    assert dispatch(journal, 4) == "aaba"


def test_the_answers_before_say_what_an_answer_is_expected_to_have() -> None:
    shares = TenantShares()
    assert shares.expected_tokens("a", 10, None) == 10 + FIRST_GUESS_TOKENS
    assert shares.expected_tokens("a", 10, 4) == 14
    for generated in (100, 50):
        shares.charge("a", 110)
        shares.begin("a")
        shares.settle("a", 110, 10, generated)
    assert shares.expected_tokens("a", 10, None) == 10 + 75
    assert shares.expected_tokens("a", 10, 4096) == 10 + 75


def test_a_request_is_charged_once_however_often_it_is_dispatched() -> None:
    journal = Journal()
    (first,) = queue(journal, "a", 1)
    queue(journal, "a", 9)
    queue(journal, "b", 9)
    assert dispatch(journal, 1) == "a"
    journal.requeue(first, "lost")
    assert dispatch(journal, 5) == "a" + "baba"


def test_one_that_rose_is_charged_too() -> None:
    journal = Journal()
    first, *_ = queue(journal, "a", 9)
    queue(journal, "b", 9)
    journal.rise(first)
    journal.dispatch(first, A)
    journal.check_integrity()
    assert first.charged_tokens == 10
    assert dispatch(journal, 3) == "bab"


def test_interactive_requests_are_first_come_first_served() -> None:
    journal = journal_with(b=9)
    requests = [journal.add(client(next(_NAMES)), submit(tenant=tenant), 0.0) for tenant in "aabab"]
    assert journal.waiting(INTERACTIVE, 9) == requests
    for request in requests:
        journal.dispatch(request, A)
    assert len(journal.shares) == 0


def test_a_new_weight_counts_from_then_on() -> None:
    journal = Journal()
    queue(journal, "a", 50)
    queue(journal, "b", 50)
    assert dispatch(journal, 4) == "abab"
    journal.shares.set_weights({"b": 4})
    assert Counter(dispatch(journal, 10)) == {"a": 2, "b": 8}


def test_tenants_are_forgotten_when_nothing_of_them_is_left() -> None:
    journal = Journal()
    for number in range(100):
        (request,) = queue(journal, f"tenant-{number}", 1)
        assert len(journal.shares) == 1
        dispatch(journal, 1)
        generate(journal, request, 4)
        assert len(journal.shares) == 0


def test_the_tenants_that_are_ahead_are_no_more_than_some() -> None:
    shares = TenantShares()
    shares.begin("waits")
    for number in range(5 * MOST_IDLE_TENANTS):
        shares.charge(f"tenant-{number}", 10 + number % 7)
        shares.settle(f"tenant-{number}", 10 + number % 7, 3, 7 + number % 7)
        assert len(shares) <= 2 * MOST_IDLE_TENANTS + 1


def test_tenants_with_requests_are_not_forgotten_for_idle_ones() -> None:
    shares = TenantShares()
    shares.begin("waits")
    shares.charge("runs", 1)
    for number in range(2 * MOST_IDLE_TENANTS):
        shares.charge(f"tenant-{number}", 10)
        shares.settle(f"tenant-{number}", 10, 3, 7)
    assert len(shares) < 2 * MOST_IDLE_TENANTS, "some idle ones were forgotten"
    shares.settle("runs", 1, 1, 0)
    shares.end("waits")


@given(
    weights=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=4, max_size=4),
    ends=st.lists(st.integers(0, 40), min_size=8, max_size=8),
)
def test_of_tenants_that_always_wait_none_is_ahead_by_more_than_what_is_in_flight(
    weights: list[int], lengths: list[tuple[int, int]], ends: list[int]
) -> None:
    """Served tokens over weight differ by what the requests in flight and one more may have."""
    names = [f"tenant-{index}" for index in range(len(weights))]
    journal = journal_with(**dict(zip(names, weights, strict=True)))
    served = dict.fromkeys(names, 0)
    in_flight: list[Request] = []
    for name, (prompt, most) in zip(names, lengths, strict=False):
        queue(journal, name, 80, prompt, most)
    for turn in range(80):
        in_flight += journal.waiting(BATCH, 1)
        journal.dispatch(in_flight[-1], A)
        if len(in_flight) == 4:
            ended = in_flight.pop(0)
            generated = min(ends[turn % 8], ended.submit.max_tokens or 0)
            served[ended.submit.tenant] += ended.prompt_tokens + generated
            ended.tokens.extend([7] * generated)
            journal.remove(ended)
    journal.check_integrity()
    had = [served[name] / weight for name, weight in zip(names, weights, strict=True)]
    assert max(had) - min(had) <= 5 * 100


def test_nobody_starves_beside_a_tenant_of_great_weight() -> None:
    journal = journal_with(great=1000)
    queue(journal, "small", 1)
    queue(journal, "great", 3000)
    queue(journal, "small", 1)
    assert dispatch(journal, 1010).count("s") == 2


def test_a_tenant_that_is_not_listed_any_more_has_the_weight_of_all() -> None:
    shares = TenantShares()
    shares.set_weights({"a": 4, "b": 2})
    shares.set_weights({"b": 3})
    assert (shares.weight("a"), shares.weight("b")) == (1, 3)


def test_the_expectation_follows_the_last_answers() -> None:
    shares = TenantShares()
    shares.begin("a")
    for generated in [100] * 200 + [0] * SAMPLES_KEPT:
        shares.charge("a", 10)
        shares.settle("a", 10, 10, generated)
    assert shares.expected_tokens("a", 0, None) < 50


def test_a_tenant_whose_request_leaves_the_queue_is_forgotten() -> None:
    journal = Journal()
    (request,) = queue(journal, "a", 1)
    journal.remove(request)
    assert len(journal.shares) == 0


def test_of_too_many_idle_tenants_those_that_are_furthest_ahead_are_remembered() -> None:
    shares = TenantShares()
    shares.begin("waits")
    for number in range(2 * MOST_IDLE_TENANTS):
        shares.charge(f"tenant-{number}", 10 + number)
        shares.settle(f"tenant-{number}", 10 + number, 10, number)
    for tenant in ("tenant-0", f"tenant-{2 * MOST_IDLE_TENANTS - 2}"):
        shares.begin(tenant)
    assert [(tag, tenant) for tag, _, tenant in shares.in_turn] == [
        (0.0, "waits"),
        (0.0, "tenant-0"),
        (8.0 + 2 * MOST_IDLE_TENANTS, f"tenant-{2 * MOST_IDLE_TENANTS - 2}"),
    ]


def test_one_that_is_charged_with_nothing_queued_begins_where_the_others_are() -> None:
    """As one is whose only request rose."""
    shares = TenantShares()
    shares.begin("b")
    shares.charge("b", 100)
    shares.charge("a", 50)
    shares.begin("a")
    assert [(tag, tenant) for tag, _, tenant in shares.in_turn] == [(100.0, "b"), (150.0, "a")]
