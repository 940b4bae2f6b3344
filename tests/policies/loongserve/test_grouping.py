"""Elastic groups by LoongServe's plan: which of those that wait get which instances."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.policies.groups.group_plan import GroupCandidate
from dunlin.policies.loongserve.grouping import PlannedGroup, plan_groups
from dunlin.policies.loongserve.inputs import GroupTimes, PendingRequest, PrefillPrices

TIMES = GroupTimes(
    {size: PrefillPrices(0.05, 0.001 / size, 0.0) for size in (1, 2, 4)},
    tipping_s=0.2,
    decode_s=2.0,
    move_tokens_per_s=1000.0,
    rows_per_master=8,
)


def candidate(name: str, free: int = 1000, **fields: Any) -> GroupCandidate:
    values = {"capacity_slots": 1000, "free_slots": free, "node": "n", **fields}
    return GroupCandidate(Address("instance", name, 1), **values)


def request(tokens: int, longest: int = 0) -> PendingRequest:
    return PendingRequest(0, tokens, longest or tokens)


def names(groups: list[PlannedGroup]) -> list[tuple[tuple[int, ...], str]]:
    return [(group.requests, "".join(member.name for member in group.members)) for group in groups]


def test_a_long_prompt_gets_all_idle_instances_and_none_that_is_busy() -> None:
    free = [candidate("a"), candidate("b", 900), candidate("c", requests=3), candidate("d"), candidate("e", 950)]
    (group,) = plan_groups([request(1500, 1600)], free, TIMES)
    assert names([group]) == [((0,), "adeb")]  # the leader has most room
    figures = {figure.name: figure.value for figure in group.why.figures}
    assert figures["group_prefill_s"] == 0.05 + 1.5 / 4
    assert group.why.rejected[0].reason == "1.55 s of prefill"


def test_busy_instances_lend_the_slots_that_are_lacking() -> None:
    free = [candidate("a"), candidate("b", 700, requests=9), candidate("c", 800, requests=1)]
    assert names(plan_groups([request(1500, 1600)], free, TIMES)) == [((0,), "ac")]
    assert names(plan_groups([request(1500, 1801)], free, TIMES)) == [((0,), "acb")]
    assert plan_groups([request(1500, 2600)], free, TIMES) == []


def test_no_more_busy_instances_lend_slots_than_are_lacking_though_more_would_compute_in_time() -> None:
    """With two or three instances a step takes a second more, so all four are weighed; the slots of one are lacking."""
    dear = replace(TIMES, measured={**TIMES.measured, 2: PrefillPrices(1.0, 0.001, 0.0)})
    free = [candidate("a", 100), *(candidate(name, 100, requests=1) for name in "bcd")]
    groups = plan_groups([request(90), request(90)], free, dear)
    assert sorted(names(groups)) == [((0,), "a"), ((1,), "b")]


def test_requests_of_unlike_length_get_groups_of_their_own() -> None:
    free = [candidate(name, 4000) for name in "abcd"]
    groups = plan_groups([request(20), request(700)], free, TIMES)
    assert sorted((group.requests, len(group.members)) for group in groups) == [((0,), 2), ((1,), 2)]


def test_the_node_with_most_room_is_planned_first() -> None:
    free = [candidate("a", node="m"), candidate("b"), candidate("c")]
    assert names(plan_groups([request(500)], free, TIMES)) == [((0,), "bc")]


def test_none_overtakes_one_that_has_no_room() -> None:
    assert plan_groups([request(5000), request(10)], [candidate("a"), candidate("b")], TIMES) == []


def test_a_group_is_of_one_node_unless_it_may_span_them() -> None:
    free = [candidate(name, node=f"n{index % 2}") for index, name in enumerate("abcd")]
    assert names(plan_groups([request(1500), request(1800)], free, TIMES)) == [((0,), "ac"), ((1,), "bd")]
    assert plan_groups([request(2500)], free, TIMES) == []
    assert names(plan_groups([request(2500)], free, TIMES, across_nodes=True)) == [((0,), "abcd")]


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 500)), max_size=8),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 2), st.sampled_from("xy")), max_size=8),
)
def test_groups_hold_what_they_are_formed_for(
    waiting: list[tuple[int, int]], rooms: list[tuple[int, int, str]]
) -> None:
    free = [candidate(f"i{at}", slots, requests=busy, node=node) for at, (slots, busy, node) in enumerate(rooms)]
    pending = [request(tokens, tokens + more) for tokens, more in waiting]
    groups = plan_groups(pending, free, TIMES)
    assert groups == plan_groups(pending, list(reversed(free)), TIMES)
    planned = sorted(index for group in groups for index in group.requests)
    assert planned == list(range(len(planned)))
    members = [member for group in groups for member in group.members]
    assert len(set(members)) == len(members)
    of = {one.address: one for one in free}
    for group in groups:
        assert len({of[member].node for member in group.members}) == 1
        assert sum(of[member].free_slots for member in group.members) >= sum(pending[i].longest for i in group.requests)
