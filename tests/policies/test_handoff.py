"""Where sequences go on after their first token."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.policies.handoff import HANDOFF_POLICIES, MIN_TARGETS, HandoffCandidate, assign_targets, most_room


def taker(name: str, free_slots: int, capacity_slots: int = 100) -> HandoffCandidate:
    return HandoffCandidate(name, capacity_slots, free_slots)


def test_the_least_loaded_takes_it() -> None:
    choice = most_room(10, [taker("a", 50), taker("b", 60), taker("c", 60)])
    assert choice is not None
    assert choice.index == 1
    assert (choice.why.policy, choice.why.chosen) == ("most_room", "go on at b")
    assert {figure.name: figure.value for figure in choice.why.figures} == {
        "slots": 10,
        "free_slots": 60,
        "candidates": 3,
    }
    assert [(one.option, one.reason) for one in choice.why.rejected] == [("c", "60 slots free"), ("a", "50 slots free")]


def test_load_is_relative_to_size_but_room_is_not() -> None:
    small, big = taker("small", 60, capacity_slots=100), taker("big", 400, capacity_slots=1000)
    for slots, name in ((60, "small"), (61, "big")):
        choice = most_room(slots, [big, small])
        assert choice is not None
        assert choice.why.chosen == f"go on at {name}"


def test_without_room_it_goes_nowhere() -> None:
    assert most_room(51, [taker("a", 50), taker("b", -3)]) is None
    assert most_room(1, []) is None


def test_the_policy_none_hands_nothing_off() -> None:
    assert HANDOFF_POLICIES["none"](1, [taker("a", 100)]) is None


@pytest.mark.parametrize(
    ("givers", "takers", "expected"),
    [(0, 3, []), (2, 0, [[], []]), (2, 3, [[0, 1, 2]] * 2)],
)
def test_few_hear_of_all(givers: int, takers: int, expected: list[list[int]]) -> None:
    assert assign_targets(givers, takers) == expected


@given(givers=st.integers(1, 60), takers=st.integers(0, 60))
def test_each_hears_of_some_and_each_is_heard_of_about_as_often(givers: int, takers: int) -> None:
    rows = assign_targets(givers, takers)
    assert len(rows) == givers
    assert all(len(set(row)) == len(row) >= min(takers, MIN_TARGETS) for row in rows)
    assert all(row == sorted(row) and all(0 <= number < takers for number in row) for row in rows)
    heard = Counter(number for row in rows for number in row)
    assert len(heard) == takers
    size = len(rows[0])
    assert all(heard[number] <= -(-givers * size // max(1, takers)) + size for number in heard)
