"""How a trace is stretched to a load, from made-up rows."""

from benchmarks.engine.throughput import StepCounts, scaled
from dunlin.workload.traffic.trace import Arrival


def test_a_trace_is_cut_and_stretched_to_the_load_wanted() -> None:
    trace = [Arrival(0.5 * i, 8, 2) for i in range(1000)]
    got = scaled(trace, wanted_tokens_per_s=40, duration_s=10, room=100)
    assert sum(one.input_tokens + one.output_tokens for one in got) == 400
    assert got[-1].at_s == 10.0
    assert got[1].at_s - got[0].at_s == got[-1].at_s / 39


def test_clipped_lengths_count_as_clipped() -> None:
    trace = [Arrival(float(i), 900, 100) for i in range(1000)]
    assert len(scaled(trace, wanted_tokens_per_s=10, duration_s=10, room=50)) == 2


def test_a_trace_too_short_for_the_load_is_taken_whole() -> None:
    trace = [Arrival(float(i), 1, 1) for i in range(5)]
    assert len(scaled(trace, wanted_tokens_per_s=1000, duration_s=10, room=50)) == 5


def test_counters_are_compared() -> None:
    assert StepCounts(10, 5, 8).since(StepCounts(4, 1, 2)) == StepCounts(6, 4, 6)
