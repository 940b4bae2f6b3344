"""Batching by dynamic programming: both searches find the same plan, and equation 6 as printed would not."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.policies.loongserve.batching import BatchingProblem, BatchPlan, best_batches, best_batches_plainly
from dunlin.policies.loongserve.coarse import batch_within, even_cuts
from dunlin.policies.loongserve.inputs import GroupTimes, PlanLimits, PrefillPrices

MUCH = 10**6


def times_of(*token_s: float, fixed_s: float = 0.0, square_s: float = 0.0) -> GroupTimes:
    prices = {size: PrefillPrices(fixed_s, each, square_s / size) for size, each in enumerate(token_s, start=1)}
    return GroupTimes(prices, tipping_s=1.0, decode_s=1.0, move_tokens_per_s=1.0, rows_per_master=8)


def problem_of(lengths: Sequence[int], room: Sequence[int], times: GroupTimes) -> BatchingProblem:
    return BatchingProblem(lengths, room, times)


def total_s(batches: Sequence[BatchPlan] | None) -> float:
    return sum(batch.latency_s for batch in batches or ())


# Sums of these numbers are exact, so that plans of one cost are found in the same order.
exact = st.integers(0, 64).map(lambda eighths: eighths / 8)
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=24).map(lambda each: sorted(each, reverse=True))
prices = st.builds(PrefillPrices, exact, exact, exact)


@st.composite
def problems(draw: st.DrawFn) -> BatchingProblem:
    measured = {1: draw(prices), **draw(st.dictionaries(st.integers(2, 6), prices, max_size=4))}
    times = GroupTimes(measured, 1.0, 1.0, 1.0, 8)
    room = draw(st.lists(st.integers(0, 120), min_size=1, max_size=6))
    return problem_of(draw(lengths), room, times)


@given(problems())
def test_monotone_splits_lose_nothing(problem: BatchingProblem) -> None:
    assert best_batches(problem) == best_batches_plainly(problem)


@given(problems())
def test_batches_hold_all_requests_on_instances_of_their_own_with_room(problem: BatchingProblem) -> None:
    found = best_batches(problem)
    if found is None:
        assert problem.tokens[-1] > problem.room[-1]
        return
    assert [found[0].start, found[-1].stop] == [0, len(problem.requests) - 1]
    assert all(one.stop == two.start and one.last <= two.first for one, two in pairwise(found))
    for batch in found:
        tokens = problem.tokens[batch.stop] - problem.tokens[batch.start]
        assert tokens <= problem.room[batch.last] - problem.room[batch.first]


def test_equation_6_as_printed_would_find_a_worse_plan() -> None:
    """Two requests of 8 and 4 tokens: on two instances the best split is after the first one, on three there is none.
    A search whose split never moves back as instances are added ends at 64 s and not at 56.
    """
    times = times_of(6.0, 4.0, 2.0, fixed_s=4.0)
    two, three = (best_batches(problem_of([8, 4], [MUCH] * many, times)) for many in (2, 3))
    assert two is not None
    assert [(batch.start, batch.latency_s) for batch in two] == [(0, 52.0), (1, 28.0)]
    assert three is not None
    assert [(batch.start, batch.latency_s) for batch in three] == [(0, 56.0)]
    split_after_first = times.prefill_s(2, 8, 64) + times.prefill_s(1, 4, 16)
    assert split_after_first == 64.0


def test_a_price_without_the_quadrangle_inequality_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        PrefillPrices(1.0, -0.1, 0.0)


def test_long_and_short_requests_get_the_instances_that_fit_them() -> None:
    times = times_of(1.0, 0.5, 0.375, 0.25)
    found = best_batches(problem_of([1000, 10, 10], [MUCH] * 4, times))
    assert found is not None
    assert [(batch.stop - batch.start, batch.last - batch.first) for batch in found] == [(1, 3), (2, 1)]


def test_an_instance_with_too_little_room_is_left_out() -> None:
    found = best_batches(problem_of([50], [10, 60], times_of(1.0, 2.0)))
    assert found == [BatchPlan(0, 1, 1, 2, 50.0)]


def test_a_last_instance_of_no_use_is_left_out() -> None:
    found = best_batches(problem_of([50], [60, 10], times_of(1.0, 2.0)))
    assert found == [BatchPlan(0, 1, 0, 1, 50.0)]


@pytest.mark.parametrize("requests", [2, 12])
def test_a_degree_with_a_dear_step_is_not_used(requests: int) -> None:
    """A prefill takes 99 s longer on two instances than on one."""
    dear = {1: PrefillPrices(1.0, 1.0, 0.0), 2: PrefillPrices(100.0, 1.0, 0.0)}
    problem = problem_of([1] * requests, [MUCH] * 4, GroupTimes(dear, 1.0, 1.0, 1.0, 8))
    found = best_batches(problem)
    assert found == best_batches_plainly(problem)
    assert found is not None
    assert all(batch.last - batch.first == 1 for batch in found)


def test_rows_are_halved_more_than_once() -> None:
    """40 rows, of which fewer than nine are searched one after the other."""
    problem = problem_of(range(40, 0, -1), [MUCH] * 4, times_of(1.0, 0.5, 0.25, fixed_s=8.0))
    found = best_batches(problem)
    assert found is not None
    assert found == best_batches_plainly(problem)
    assert [(batch.start, batch.stop) for batch in found] == [(0, 27), (27, 40)]


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=40), st.integers(1, 12))
def test_cuts_rise_from_the_first_to_the_last(weights: list[float], parts: int) -> None:
    cuts = even_cuts(weights, parts)
    assert (cuts[0], cuts[-1]) == (0, len(weights))
    assert all(one < two for one, two in pairwise(cuts))
    assert len(cuts) - 1 <= max(parts, 1)
    assert len(weights) > parts or cuts == list(range(len(weights) + 1))


def test_parts_between_cuts_weigh_about_the_same() -> None:
    assert even_cuts([1.0] * 6, 3) == [0, 2, 4, 6]
    assert even_cuts([9.0, 1.0, 1.0, 1.0], 2) == [0, 1, 4]


@given(problems(), st.integers(1, 4), st.integers(1, 3))
def test_fewer_cuts_give_a_plan_that_holds_and_is_no_better(problem: BatchingProblem, requests: int, some: int) -> None:
    lengths = [two - one for one, two in pairwise(problem.tokens)]
    room = [two - one for one, two in pairwise(problem.room)]
    limits = PlanLimits(request_cuts=requests, instance_cuts=some)
    best = best_batches(problem)
    if best is None:
        with pytest.raises(ValueError, match="no room"):
            batch_within(lengths, room, problem.times, limits)
        return
    found = batch_within(lengths, room, problem.times, limits)
    assert [found[0].start, found[-1].stop] == [0, len(lengths)]
    assert all(one.stop == two.start and one.last <= two.first for one, two in pairwise(found))
    assert all(sum(lengths[batch.start : batch.stop]) <= sum(room[batch.first : batch.last]) for batch in found)
    assert total_s(found) >= total_s(best) - 1e-9


def test_a_request_beyond_the_largest_degree_gets_as_many_as_hold_it() -> None:
    found = batch_within([35, 5, 5, 5], [10] * 8, times_of(1.0, 0.5), PlanLimits())
    assert [(batch.start, batch.stop, batch.last - batch.first) for batch in found[:1]] == [(0, 1, 4)]
    assert total_s(found) == 17.5 + 2.5 + 5.0 + 5.0


def test_a_request_of_a_slot_more_than_an_instance_has_gets_a_second_one() -> None:
    found = batch_within([11, 5], [10] * 4, times_of(1.0), PlanLimits())
    assert [(batch.start, batch.stop, batch.last - batch.first) for batch in found] == [(0, 1, 2), (1, 2, 1)]


def test_equal_requests_are_parted_evenly_beyond_the_cuts() -> None:
    """64 alike on 64 instances that share nothing well: each alone, though there are cuts for 8 parts."""
    times = times_of(*[1.0] * 64)
    found = batch_within([10] * 64, [MUCH] * 64, times, PlanLimits(request_cuts=8, instance_cuts=8))
    assert [(batch.stop - batch.start, batch.last - batch.first) for batch in found] == [(1, 1)] * 64


@pytest.mark.parametrize(("second_token_s", "parts"), [(0.5, [(0, 2, 0, 2)]), (0.625, [(0, 1, 0, 1), (1, 2, 1, 2)])])
def test_a_batch_is_cut_only_where_that_is_better(second_token_s: float, parts: list[tuple[int, ...]]) -> None:
    """Two requests of 8 tokens: 8 s each where each has an instance, or both have two at half a second a token."""
    found = batch_within([8, 8], [MUCH] * 2, times_of(1.0, second_token_s), PlanLimits(request_cuts=1, instance_cuts=1))
    assert [(batch.start, batch.stop, batch.first, batch.last) for batch in found] == parts
