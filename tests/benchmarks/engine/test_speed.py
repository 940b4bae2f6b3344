"""The engine's comparison, small and whole: what each contestant computes is checked, how long it took is not."""

from pathlib import Path

import pytest

from benchmarks.engine.comparison import Column, ModelSpeed
from benchmarks.engine.rounds import SpeedPlan, run
from benchmarks.engine.speed import as_json, failures, model_table
from benchmarks.engine.workloads import Workload
from benchmarks.harness.processes import ROOT

WORKLOADS = (
    Workload("prefill", (40,), 1),
    Workload("decode", (20, 9, 33, 5), 3, is_decode=True, pieces=2),
    Workload("all", (24,) * 6, 4),
)


@pytest.mark.processes
def test_every_contestant_computes_every_workload() -> None:
    pytest.importorskip("transformers")
    plan = SpeedPlan(("tiny",), 1, 1, ROOT, WORKLOADS, least_s=0.0, limit_s=0.0)
    (speed,) = run(plan).values()
    for column in speed.columns.values():
        assert len(column.rates) == 3
        assert all(len(rates) == 1 and rates[0] > 0 for rates in column.rates.values())
        assert len({tuple(tokens) for name, tokens in column.first_tokens.items() if name != "transformers"}) == 1
    agreeing = sum(column.agreeing("transformers") for column in speed.columns.values())
    assert agreeing >= 9, "of 11 first tokens"
    assert len(model_table(speed).splitlines()) == 1 + len(WORKLOADS)
    assert '"decode"' in as_json(plan, {"tiny": speed}, [], (0.0, 0.0))


def speed_of(ours: float, theirs: float, tokens: list[int], busy: float = 0.0) -> ModelSpeed:
    rates = {"dunlin": [ours] * 2, "transformers": [1.0] * 2, "older": [theirs] * 2}
    others = {name: [busy] * 2 for name in rates}
    first_tokens = {"dunlin": tokens, "transformers": [1, 2, 3, 4, 5]}
    return ModelSpeed({"w": Column(rates, others=others, first_tokens=first_tokens)})


def test_a_slower_column_and_other_texts_are_named(tmp_path: Path) -> None:
    plan = SpeedPlan(tree=tmp_path / "older")
    assert failures(plan, {"A": speed_of(9.0, 10.0, [1, 2, 3, 9, 9])}) == [
        "A, w: 0.90 of older",
        "A: only 3 of 5 first tokens are transformers'",
    ]
    assert failures(plan, {"A": speed_of(10.0, 10.0, [1, 2, 3, 4, 9])}) == []


def test_a_busy_machine_judges_nothing(tmp_path: Path) -> None:
    found = {"A": speed_of(20.0, 10.0, [1, 2, 3, 4, 5], busy=1.5)}
    assert failures(SpeedPlan(tree=tmp_path / "older"), found) == [
        "A, w: not judged, other processes kept 1.5 cores busy"
    ]
    assert failures(SpeedPlan(), found) == []
