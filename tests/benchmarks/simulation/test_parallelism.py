"""The search over splits: which are tried, and that bisection finds the rate."""

import pytest

from benchmarks.simulation.parallelism import Split, best_rate, splits


def test_splits_use_all_gpus_and_are_all_different() -> None:
    found = splits(8)
    assert {split.tp * split.instances for split in found} == {8}
    assert {split.tp for split in found} == {1, 2, 4}, "one instance of eight GPUs cannot be split"
    assert splits(2) == [Split(1, 0.25, 2)], "one of two, whatever the share"


@pytest.mark.parametrize("limit", [0.0, 3.3, 9.9])
def test_the_rate_is_the_largest_that_meets_the_objective(limit: float) -> None:
    found = best_rate(lambda rate: rate <= limit, most=8.0, steps=6)
    assert min(limit, 8.0) - 8.0 / 2**6 <= found <= limit
