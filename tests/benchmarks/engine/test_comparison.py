"""What rates of several rounds come to."""

from collections import Counter

import pytest

from benchmarks.engine.comparison import Column, Ratio, in_turn


def test_ratios_are_of_the_same_round() -> None:
    column = Column({"dunlin": [10.0, 40.0, 30.0], "other": [10.0, 20.0, 10.0]})
    assert column.against("other") == Ratio(2.0, 1.0, 3.0)


def test_a_rate_by_cpu_counts_the_cores() -> None:
    column = Column({"dunlin": [10.0], "other": [20.0]}, {"dunlin": [0.5], "other": [2.0]})
    assert column.against("other").median == 0.5
    assert column.by_cpu("other").median == 2.0


def test_below_is_what_is_slower_in_every_round_and_by_more_than_noise() -> None:
    assert Ratio(0.9, 0.8, 0.99).is_below
    assert not Ratio(0.9, 0.8, 1.01).is_below
    assert not Ratio(0.98, 0.8, 0.99).is_below


def test_rounds_beside_busy_processes_do_not_count() -> None:
    column = Column({"dunlin": [10.0, 40.0, 30.0], "other": [10.0, 20.0, 10.0]})
    column.others = {"dunlin": [0.0, 0.1, 0.0], "other": [0.0, 0.1, 0.2]}
    assert column.undisturbed("other") == Ratio(1.5, 1.0, 2.0)
    column.others["dunlin"] = [0.2] * 3
    assert column.undisturbed("other") is None


def test_first_tokens_are_compared_request_by_request() -> None:
    assert Column(first_tokens={"dunlin": [1, 2, 3], "other": [1, 3, 3]}).agreeing("other") == 2


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"]])
def test_each_contestant_is_at_each_place_equally_often(names: list[str]) -> None:
    orders = [in_turn(names, turn) for turn in range(2 * len(names))]
    for place in range(len(names)):
        assert Counter(order[place] for order in orders) == dict.fromkeys(names, 2)
    assert len({tuple(order) for order in orders}) == (2 if len(names) == 2 else 6)
