"""The starvation bound: what counts as progress, when a request is starved, how many rise and which."""

import pytest

from dunlin.policies.starvation import Progress, StarvationBound, choose_rising, why_it_rises


def test_what_is_computed_again_is_no_progress() -> None:
    progress = Progress(10, 1.0)
    assert progress.stalled_s(10, 3.0) == 2.0
    assert progress.stalled_s(14, 4.0) == 0.0
    assert progress.stalled_s(2, 5.0) == 1.0, "it was preempted"
    assert progress.stalled_s(14, 6.0) == 2.0, "as far as before"
    assert progress.stalled_s(15, 7.0) == 0.0


def test_a_request_is_starved_from_the_bound_on_and_never_without_one() -> None:
    bound = StarvationBound(5.0, 0.1)
    assert [bound.is_starved(stalled_s) for stalled_s in (0.0, 4.9, 5.0)] == [False, False, True]
    assert not StarvationBound(0.0, 0.1).is_starved(1e9)


@pytest.mark.parametrize(("wait_s", "interval_s"), [(600.0, 1.0), (4.0, 0.5), (0.0, 1.0)])
def test_looks_are_a_small_part_of_the_bound_apart_and_a_second_at_most(wait_s: float, interval_s: float) -> None:
    assert StarvationBound(wait_s, 0.1).look_interval_s == interval_s


def test_the_share_is_rounded_down_and_one_may_always_rise() -> None:
    assert [StarvationBound(1.0, 0.1).most_risen(of) for of in (0, 9, 10, 19, 20)] == [1, 1, 1, 1, 2]
    assert StarvationBound(1.0, 0.0).most_risen(1000) == 1


def test_those_that_stalled_longest_rise_first_and_no_more_than_there_is_room_for() -> None:
    assert choose_rising([1.0, 5.0, 3.0, 5.0], 3) == [1, 3, 2]
    assert choose_rising([1.0, 5.0], 0) == []
    assert choose_rising([1.0, 5.0], -2) == [], "the share became smaller"


def test_the_reason_has_the_numbers_that_were_compared() -> None:
    why = why_it_rises("it waited", 7.5, 1, 3)
    assert {figure.name: figure.value for figure in why.figures} == {"stalled_s": 7.5, "risen": 1, "most_risen": 3}
    assert why.rejected[0].reason == "it waited"
