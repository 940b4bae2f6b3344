"""The comparison of presets: how settings are chosen, that nothing is simulated twice, and what is shown."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation import preset_tables, presets
from benchmarks.simulation.presets import WORKLOADS, PresetBench, PresetRun, Results
from dunlin.workload.loadgen.slo import Slo
from dunlin.workload.loadgen.stats import RequestRecord
from simulator.study.report import PresetFigures, figures
from simulator.study.report import SimulationOutcome as Simulated

OPTIONS = argparse.Namespace(
    only=["conv"], preset=[], seeds=(0,), seconds=300.0, tune_seconds=60.0, defaults=False, overhead=""
)

PROMISED = {"instance.objectives.ttft_s": 2.0, "instance.objectives.tpot_s": 0.1}


def found(share: float) -> PresetFigures:
    """The figures of a run of a hundred requests that met the objective so often."""
    records = [
        RequestRecord(0.0, 10, 2, token_s=[1.0 if index < 100 * share else 9.0, 9.5], end_s=9.5, outcome="ok")
        for index in range(100)
    ]
    return figures(Simulated("chunked", records, [0.0] * 100, {}), {"": Slo(ttft=2.0)})


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PresetBench, list[Any]]:
    """A bench that simulates nothing: a budget of 1024, and half of the instances, are best."""
    made: list[Any] = []

    def run_case(case: Any, arrivals: Any) -> Any:
        made.append(case)
        return case

    def figures_of(case: Any, slos: Any) -> PresetFigures:
        settings = dict(case.settings)
        budget = settings.get("instance.scheduler.budget_tokens")
        share = settings.get("manager.groups.prefill_share", 0.5)
        return found(0.5 + 0.2 * (budget == 1024) + 0.2 * (share == 0.75))

    monkeypatch.setattr(presets, "run_case", run_case)
    monkeypatch.setattr(presets, "figures", figures_of)
    monkeypatch.setattr(presets, "read_workload", lambda spec, seed, duration: [])
    return PresetBench(Path("t"), Results(tmp_path / "r"), OPTIONS), made


def test_each_preset_is_compared_with_what_tuning_found_and_nothing_runs_twice(
    bench: tuple[PresetBench, list[Any]], tmp_path: Path
) -> None:
    one, made = bench
    one.tune()
    tuned = len(made)
    one.matrix()
    assert len(made) == tuned + len(presets.PRESETS)
    settings = {case.preset: dict(case.settings) for case in made[tuned:]}
    assert settings["chunked"] == {"instance.scheduler.budget_tokens": 1024} | PROMISED
    assert settings["distserve"]["manager.groups.prefill_share"] == 0.75
    again = PresetBench(Path("t"), Results(tmp_path / "r"), OPTIONS)
    again.tune()
    again.matrix()
    assert len(made) == tuned + len(presets.PRESETS)


def test_without_tuning_all_have_the_same_but_for_whole_prompts(bench: tuple[PresetBench, list[Any]]) -> None:
    _, made = bench
    options = argparse.Namespace(**{**vars(OPTIONS), "only": ["code"], "defaults": True, "overhead": "0"})
    PresetBench(Path("t"), bench[0]._results, options).matrix()
    assert {case.overhead for case in made} == {"0"}
    settings = {case.preset: dict(case.settings) for case in made}
    promised = {"instance.objectives.ttft_s": 3.0, "instance.objectives.tpot_s": 0.1}
    assert settings["chunked"] == settings["llumnix"] == promised
    assert settings["vllm"] == settings["fifo"] == {"instance.scheduler.budget_tokens": 2048} | promised
    assert settings["distserve"] == {"manager.groups.prefill_share": 0.75} | promised


def test_chosen_presets_run_with_every_seed(bench: tuple[PresetBench, list[Any]]) -> None:
    one, made = bench
    asked = {"preset": ["vllm", "unified"], "seeds": (0, 2), "defaults": True, "seconds": 90.0}
    PresetBench(Path("t"), one._results, argparse.Namespace(**{**vars(OPTIONS), **asked})).matrix()
    assert [(case.preset, case.seed) for case in made] == [("vllm", 0), ("vllm", 2), ("unified", 0), ("unified", 2)]


def test_what_is_tuned_on_is_not_reported() -> None:
    for workload in WORKLOADS.values():
        (start, lasts, _), (other, more, _) = workload.tuned, workload.reported
        assert start + lasts <= other or other + more <= start
        assert more >= 300


def test_a_workload_is_said_as_the_command_takes_it() -> None:
    spec = WORKLOADS["conv"].spec(Path("d"), "batch", 5, 300)
    trace, batch = spec.split(" + ")
    assert trace == "trace:d/azure2023_conv_0_1699s.csv.gz,from=600,duration=300,rate=5"
    assert "class=batch" in batch


def test_tables_name_the_best_settings_and_every_preset(
    bench: tuple[PresetBench, list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, _ = bench
    one.tune()
    one.matrix()
    capsys.readouterr()
    rows = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    preset_tables.print_tables(rows, None)
    said = capsys.readouterr().out
    assert "| distserve | budget_tokens 1024, prefill_share 0.75 (90%; the worst 50%) |" in said
    assert "| llumnix | 70.0% |" in said
    assert "| 0 / 0 / 0 | 0 |" in said  # refused, expired, failed; no first token
    assert "The engine's host adds" in said


def test_what_was_lost_is_summed_over_the_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = Results(tmp_path / "r")
    for seed, lost in ((0, ("refused", "error")), (1, ("refused", "expired"))):
        records = [RequestRecord(0.0, 10, 2, token_s=[1.0, 2.0], end_s=2.0, outcome="ok")]
        records += [RequestRecord(0.0, 10, 2, outcome=outcome) for outcome in lost]
        made = figures(Simulated("fifo", records, [0.0, -1.0, -1.0], {}, overhead="vllm: 11 ms"), {"": Slo(ttft=2.0)})
        results.add(PresetRun("matrix", "conv", "fifo", (), 4.6, seed, 60), made)
    preset_tables.print_tables(results.rows, None)
    said = capsys.readouterr().out
    assert "| 2 / 1 / 1 | 4 |" in said
    assert "never" in said  # the 99th percentile of the first token
    assert "vllm: 11 ms: fifo" in said


def test_runs_of_other_lengths_and_settings_are_not_shown_as_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = Results(tmp_path / "r")
    tuned = (("instance.scheduler.budget_tokens", 1024),)
    results.add(PresetRun("matrix", "conv", "chunked", (), 4.6, 0, 60), found(0.2))
    results.add(PresetRun("matrix", "conv", "chunked", tuned, 4.6, 0, 60), found(0.4))
    results.add(PresetRun("matrix", "conv", "chunked", (), 4.6, 0, 300), found(0.6))
    preset_tables.print_tables(results.rows, None)
    minute, longer = capsys.readouterr().out.split("conv, 300 s at 4.6/s")
    assert "conv, 60 s at 4.6/s" in minute
    assert "| chunked (no setting) | 20.0% |" in minute
    assert "| chunked (budget_tokens 1024) | 40.0% |" in minute
    assert "| chunked | 60.0% |" in longer


def test_a_run_is_known_by_all_that_it_is(tmp_path: Path) -> None:
    results = Results(tmp_path / "r")
    run = PresetRun("matrix", "conv", "vllm", (("instance.budget_tokens", 512),), 5, 0, 300)
    results.add(run, found(0.5))
    assert results.find(run) is not None
    other = PresetRun("matrix", "conv", "vllm", (("instance.budget_tokens", 256),), 5, 0, 300)
    assert results.find(other) is None
    assert Results(tmp_path / "r").find(run) is not None
