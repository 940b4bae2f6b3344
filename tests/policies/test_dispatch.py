"""Dispatch policies choose by the figures that they name, and say what they did not choose."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.messages.types import MAX_ALTERNATIVES, Figure
from dunlin.policies.dispatch import (
    DISPATCH_POLICIES,
    REQUEST_OVERHEAD_TOKENS,
    DispatchCandidate,
    DispatchPolicy,
    fewest_requests,
    fewest_tokens,
    least_loaded,
    llumnix,
    prefix_affinity,
    round_robin,
)


def candidate(name: str = "a", **overrides: Any) -> DispatchCandidate:
    return DispatchCandidate(**{"name": name, "capacity_slots": 1000, "free_slots": 1000, "requests": 0, **overrides})


def test_an_instance_of_no_slots_is_loaded_by_its_requests() -> None:
    assert (candidate().demand_tokens, candidate().cached_tokens) == (0, 0)
    assert candidate(capacity_slots=0, free_slots=0, requests=1).load == REQUEST_OVERHEAD_TOKENS


@pytest.mark.parametrize("policy", [least_loaded, llumnix, prefix_affinity])
def test_a_request_weighs_more_where_there_are_no_slots_than_where_there_are_two(policy: DispatchPolicy) -> None:
    none, two = candidate("none", capacity_slots=0, free_slots=0), candidate("two", capacity_slots=2, free_slots=2)
    assert policy(10, [none, two]).index == 1


def test_round_robin_takes_who_was_never_dispatched_to_first() -> None:
    assert round_robin(10, [candidate("a", last_dispatch=1), candidate("b")]).index == 1


def test_affinity_compares_shares_of_the_capacity() -> None:
    """A request and its overhead weigh more on a small instance; a large one may hold more."""
    small, large = candidate("a", free_slots=500), candidate("b", capacity_slots=10_000, free_slots=8_000)
    assert prefix_affinity(10, [small, large]).index == 1
    light, heavy = candidate("a", free_slots=900), candidate("b", capacity_slots=10_000, free_slots=8_900)
    assert prefix_affinity(REQUEST_OVERHEAD_TOKENS, [light, heavy]).index == 1
    assert prefix_affinity(0, [light, replace(heavy, free_slots=0)]).index == 0


@pytest.mark.parametrize("busier", [{"free_slots": 999}, {"requests": 1}, {"waiting_tokens": 1}])
def test_everything_that_loads_an_instance_counts(busier: dict[str, Any]) -> None:
    assert least_loaded(10, [candidate("a", **busier), candidate("b")]).index == 1
    assert least_loaded(10, [candidate("a"), candidate("b", **busier)]).index == 0


def test_load_is_relative_to_size() -> None:
    small = candidate("small", capacity_slots=100, free_slots=60)
    big = candidate("big", capacity_slots=1000, free_slots=700)
    assert least_loaded(1, [small, big]).index == 1


def test_the_request_itself_weighs_more_on_a_small_instance() -> None:
    small = candidate("small", capacity_slots=100, free_slots=100)
    big = candidate("big", capacity_slots=1000, free_slots=900)
    assert least_loaded(50, [small, big]).index == 1


def test_a_row_weighs_as_much_as_its_tokens_of_context() -> None:
    rows = candidate("rows", requests=2)
    tokens = candidate("tokens", free_slots=1000 - 2 * REQUEST_OVERHEAD_TOKENS)
    assert rows.load_tokens == tokens.load_tokens


def test_the_baseline_counts_requests_only() -> None:
    assert fewest_requests(1, [candidate("a", requests=2), candidate("b", requests=1, free_slots=-5)]).index == 1


@pytest.mark.parametrize("longer", [{"free_slots": 999}, {"waiting_tokens": 1}])
def test_the_shortest_queue_is_measured_in_tokens(longer: dict[str, Any]) -> None:
    assert fewest_tokens(10, [candidate("a", **longer), candidate("b", requests=9)]).index == 1
    assert fewest_tokens(10, [candidate("a", requests=9), candidate("b", **longer)]).index == 0


def test_a_queue_is_as_long_on_a_big_instance_as_on_a_small_one() -> None:
    big = candidate("big", capacity_slots=5000, free_slots=4998)
    assert fewest_tokens(10, [big, candidate("small", free_slots=999)]).index == 1


def test_round_robin_takes_the_oldest_dispatch_whatever_its_load() -> None:
    busy = candidate("busy", last_dispatch=3, free_slots=-500, requests=90, waiting_tokens=900)
    assert round_robin(10, [candidate("a", last_dispatch=5), busy, candidate("c", last_dispatch=4)]).index == 1
    assert round_robin(10, [busy, candidate("new")]).index == 1


@pytest.mark.parametrize("policy", DISPATCH_POLICIES.values())
def test_ties_go_to_the_first(policy: Any) -> None:
    assert policy(3, [candidate("a"), candidate("b")]).index == 0


def test_the_reason_names_figures_and_the_next_best() -> None:
    choice = fewest_requests(7, [candidate(str(n), requests=n) for n in range(9, 0, -1)])
    assert (choice.why.policy, choice.why.chosen) == ("fewest_requests", "1")
    figures = (Figure("slots", 7), Figure("requests", 1), Figure("free_slots", 1000), Figure("candidates", 9))
    assert choice.why.figures == figures
    assert [other.option for other in choice.why.rejected] == ["2", "3", "4"]
    assert choice.why.rejected[0].reason == "requests 2"
    assert len(choice.why.rejected) == MAX_ALTERNATIVES


def test_who_came_second_among_equals_is_called_the_same() -> None:
    choice = fewest_requests(7, [candidate("a"), candidate("b")])
    assert [(other.option, other.reason) for other in choice.why.rejected] == [("b", "the same requests")]


CANDIDATES = st.lists(
    st.builds(
        DispatchCandidate,
        st.just("x"),
        st.integers(0, 10_000),
        st.integers(-10_000, 10_000),
        st.integers(0, 500),
        st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=8,
)


@given(st.integers(1, 5_000), CANDIDATES)
def test_the_least_loaded_of_equal_size_is_the_least_loaded(slots: int, candidates: list[DispatchCandidate]) -> None:
    best = candidates[least_loaded(slots, candidates).index]
    same_size = [other for other in candidates if other.capacity_slots == best.capacity_slots]
    assert all(best.load_tokens <= other.load_tokens for other in same_size)


@given(CANDIDATES)
def test_a_policy_is_a_function_of_its_input(candidates: list[DispatchCandidate]) -> None:
    for policy in DISPATCH_POLICIES.values():
        assert all(one == other for one, other in pairwise(policy(1, candidates) for _ in range(3)))
