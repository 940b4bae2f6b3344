"""What the benchmark of neighbours concludes from its rates."""

from benchmarks.engine.noisy_neighbour import NoisyNeighbourPlan, _conclude
from benchmarks.harness.report import BenchmarkResult


def test_shares_below_the_wanted_ones_are_broken() -> None:
    rates = {(1, 0): 100.0, (1, 1): 40.0, (1, 2): 20.0, (16, 0): 1000.0, (16, 1): 390.0}
    outcome = BenchmarkResult("t")
    _conclude(NoisyNeighbourPlan(), outcome, 79.0, rates)
    assert outcome.figures["1 streams, 2 busy processes / alone"] == 0.2
    assert outcome.failures == [
        "16 streams, 1 busy processes: 0.39 of what it does alone, not 0.4",
        "the first 25 s: 0.79 of later, not 0.8",
    ]


def test_the_first_seconds_may_be_left_out() -> None:
    outcome = BenchmarkResult("t")
    _conclude(NoisyNeighbourPlan(first_s=0.0), outcome, 0.0, {(1, 0): 100.0})
    assert outcome.failures == []
