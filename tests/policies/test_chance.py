"""Chance that is a function of numbers: even, and another one for other numbers."""

from dunlin.policies.chance import chance


def test_it_is_the_same_for_the_same_numbers_and_spread_evenly_over_others() -> None:
    drawn = [chance(one, other) for one in range(40) for other in range(40)]
    assert drawn == [chance(one, other) for one in range(40) for other in range(40)]
    assert len(set(drawn)) == 1600
    assert all(0.0 <= each < 1.0 for each in drawn)
    for tenth in range(10):
        assert 110 <= sum(tenth <= 10 * each < tenth + 1 for each in drawn) <= 210
    assert chance(1, 2) != chance(2, 1)
