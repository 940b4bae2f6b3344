"""The search over splits: which are tried, and that bisection finds the rate."""

import pytest

from benchmarks.simulation.parallelism import Split, best_rate, splits
from simulator.study.engine_groups import EngineGroup


def test_splits_use_all_gpus_and_are_all_different() -> None:
    found = splits(8)
    assert {split.prefills * split.prefill_tp + split.decodes * split.decode_tp for split in found} == {8}
    assert {(split.prefill_tp, split.decode_tp) for split in found} == {(p, d) for p in (1, 2, 4) for d in (1, 2, 4)}
    assert len(set(found)) == len(found)
    assert {split for split in found if split.prefill_tp == 4} == {Split(1, 4, 4 // tp, tp) for tp in (1, 2, 4)}
    assert splits(2) == [Split(1, 1, 1, 1)], "one of two, whatever the share"
    assert all(max(split.prefill_tp, split.decode_tp) == 1 for split in splits(8, most_tp=1))


def test_a_split_is_said_as_flags_and_simulated_as_roles() -> None:
    split = Split(1, 4, 2, 2)
    assert split.flags() == "--engine 1:tp=4,role=prefill --engine 2:tp=2,role=decode"
    prefill, decode = split.groups("h200")
    assert (prefill, decode) == (EngineGroup(1, "h200", 4, "prefill"), EngineGroup(2, "h200", 2, "decode"))


@pytest.mark.parametrize("limit", [0.0, 3.3, 9.9])
def test_the_rate_is_the_largest_that_meets_the_objective(limit: float) -> None:
    found = best_rate(lambda rate: rate <= limit, most=8.0, steps=6)
    assert min(limit, 8.0) - 8.0 / 2**6 <= found <= limit
