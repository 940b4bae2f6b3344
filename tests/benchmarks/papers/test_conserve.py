"""ConServe's experiments in the twin: what is counted, and that batch work is harvested beside the same chat."""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers.burst_trace import SHAPE, burst_trace, sampled_trace
from benchmarks.papers.conserve import main
from benchmarks.papers.conserve_responses import responses_s
from benchmarks.papers.conserve_scenes import CONSERVE, FIGURES, ONLINE_ONLY, SETUPS, UNIFIED, Scene, scenes
from benchmarks.papers.conserve_tables import show, summarise
from benchmarks.papers.results import Found, Results
from benchmarks.papers.running import Plan, Row, gaps_s, run, tokens_within, ttft_s
from dunlin.cost.timing_loader import load_timing
from dunlin.workload.loadgen.stats import RequestRecord

A100 = SETUPS["a100"]


def scene_of(figure: str, horizon_s: float) -> Scene:
    return next(scene for scene in scenes(A100, horizon_s) if scene.figure == figure)


def test_a_prompt_counts_with_its_first_token_and_tokens_within_the_time() -> None:
    seen = RequestRecord(0.0, 100, 3, token_s=array("d", [1.0, 2.0, 9.0]))
    late = RequestRecord(0.0, 70, 3, token_s=array("d", [9.0]))
    assert tokens_within([seen, late], 0.0, 5.0) == 102
    assert tokens_within([seen, late], 1.0, 9.0) == 2 + 71


def test_times_are_from_arrival_to_the_first_token_and_between_tokens() -> None:
    records = [RequestRecord(0.5, 9, 3, token_s=array("d", [1.0, 1.5, 3.0])), RequestRecord(0.0, 9, 3)]
    assert ttft_s(records) == [0.5, float("inf")]
    assert gaps_s(records) == [0.5, 1.5]


def test_the_burst_trace_has_the_rates_of_its_shape_and_samples_keep_them() -> None:
    trace = burst_trace(0)
    (high_s, _), (calm_s, _), (burst_s, ratio) = SHAPE
    calm = [one for one in trace if high_s <= one.at_s < high_s + calm_s]
    burst = [one for one in trace if one.at_s >= high_s + calm_s]
    assert len(burst) / burst_s == pytest.approx(ratio * len(calm) / calm_s, rel=0.15)
    sample = sampled_trace(2.0, 90.0, 0)
    assert len(sample) == 180
    assert all(0 <= one.at_s < 90.0 for one in sample)
    assert sum(one.at_s >= 62.0 for one in sample) == pytest.approx(180 * len(burst) / len(trace), rel=0.2)


def test_batch_work_is_harvested_beside_the_same_chat() -> None:
    plan, scene = Plan(A100, 8.0, 0), scene_of("ladder", 8.0)
    ideal = run(plan, scene, ONLINE_ONLY, None)
    row = run(plan, scene, CONSERVE, ideal)
    assert ideal.offline == ideal.unanswered == row.unanswered == 0
    assert row.offline > 100
    assert row.online == pytest.approx(ideal.online, rel=0.05)
    assert sum(window.offline for window in row.windows) == pytest.approx(row.offline * len(row.windows))


def test_a_run_in_the_file_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, scene, path = Plan(A100, 8.0, 0), scene_of("ladder", 8.0), tmp_path / "runs.jsonl"
    made: list[str] = []

    def fake(plan: Plan, scene: Scene, system: object, ideal: Row | None) -> Row:
        made.append(scene.title)
        return Row(1.0, float("inf"), 3.0, 4.0, 5.0, 1)

    monkeypatch.setattr("benchmarks.papers.results.run", fake)
    first = Results(path).row(plan, scene, ONLINE_ONLY, None)
    assert Results(path).row(plan, scene, ONLINE_ONLY, None) == first
    assert first.total == 9.0
    Results(path).row(replace(plan, seed=1), scene, ONLINE_ONLY, None)
    Results(path).row(plan, scene, CONSERVE, first)
    assert len(made) == 3


def test_goals_are_met_or_missed_by_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    alone, eager = Row(100, 200.0, 40.0, 1000, 0, 0), Row(900, 9000.0, 80.0, 1000, 3000, 0)
    good, late = Row(100, 219.0, 43.9, 1000, 2700, 0), Row(100, 221.0, 44.1, 1000, 1300, 2)
    rows = {"online_only": alone, "vllm++": eager, CONSERVE.name: late, UNIFIED.name: good}
    show(scene_of("rate", 8.0), rows)
    said = capsys.readouterr().out
    assert "unified: TTFT p99 1.09 met, TPOT p99 1.10 met, of vllm++ 0.93 met, of online_only 3.70 met" in said
    assert "conserve: TTFT p99 1.10 MISSED, TPOT p99 1.10 MISSED, of vllm++ 0.57 MISSED, of online_only 2.30" in said
    assert "[2 without a token]" in said
    found = Found()
    found.add(scene_of("rate", 8.0), rows)
    found.add(scene_of("rate", 8.0), rows | {UNIFIED.name: replace(good, ttft_p99=229.0)})
    summarise(found)
    means = capsys.readouterr().out.splitlines()[-1]
    assert "200 / 9000 / 221 (+10%) / 224 (+12%)" in means
    assert "57% / 92% | 2.30 / 3.70" in means


def test_an_interrupt_is_answered_within_a_layer_or_five_milliseconds() -> None:
    timing = load_timing(A100.device, A100.model, 1, None)
    for tokens, layer_s in ((1024, 0.0022), (4096, 0.0085)):
        found = responses_s(timing, A100, tokens, 32 * layer_s, 50)
        assert found
        assert 0.25 * min(layer_s, 0.005) < max(found) <= min(layer_s, 0.005)


def test_the_table_names_every_system_and_the_paper(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["--horizon", "3", "--figure", "phases", "--plot", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Fig. 6: 4/s, none, 4/s" in said
    assert all(name in said for name in ("online_only", "vllm++", "conserve", "unified", "5,868 tokens/s"))
    assert [path.name for path in tmp_path.iterdir()] == ["fig6-a100.png"]
    assert {scene.figure for setup in SETUPS.values() for scene in scenes(setup, 3.0)} == set(FIGURES)
