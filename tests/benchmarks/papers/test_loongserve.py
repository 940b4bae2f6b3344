"""LoongServe's experiments in the twin: what is measured, what is served under an objective, and that runs are kept."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers.loongserve import main
from benchmarks.papers.loongserve_results import LoongRuns, Panel, input_share, missed_share, token_share
from benchmarks.papers.loongserve_runs import PAPERS, SLO_FACTOR, Plan, Row, run
from benchmarks.papers.loongserve_scenes import LOONGSERVE, REPLICAS, STATIC, VLLM, ZIPF_MOST, Scene, System, scenes
from benchmarks.papers.loongserve_tables import show, summarise

FOUND = Row(10, 0, 0, 0, 0, 1.0, 1.0, 5.0, 2.0, 2.0, 100.0, 1.0, 0.1, 0.2)


def scene_of(title: str, shorter: float = 1.0) -> Scene:
    return next(scene for scene in scenes(None, shorter) if scene.title == title)


def panel_of(tokens_ms: Mapping[float, float]) -> Panel:
    panel = Panel(scene_of("Mixed"))
    panel.add(LOONGSERVE, {rate: replace(FOUND, token_ms=found) for rate, found in tokens_ms.items()})
    return panel


def test_what_is_served_lies_between_the_last_rate_in_time_and_the_first_beyond() -> None:
    rate, is_exceeded = panel_of({1.0: 1.0, 2.0: 4.0}).most("loongserve", token_share)
    assert is_exceeded
    assert rate == pytest.approx(1.5)  # halfway by its logarithm: 0.5, 1 and 2 times the objective
    assert panel_of({1.0: 1.0, 2.0: 2.0}).most("loongserve", token_share) == (2.0, False)
    assert panel_of({1.0: 4.0}).most("loongserve", token_share) == (0.5, True)
    assert panel_of({1.0: float("inf")}).most("loongserve", token_share) == (0.0, True)
    assert panel_of({1.0: 1.0, 3.0: float("inf")}).most("loongserve", token_share) == (1.0, True)


def test_a_tenth_of_the_requests_may_miss_their_objectives() -> None:
    assert missed_share(replace(FOUND, met=0.9)) == pytest.approx(1.0)
    assert missed_share(replace(FOUND, met=0.8)) == pytest.approx(2.0)
    assert input_share(FOUND) == 0.5


def test_only_rates_that_every_seed_has_are_shown_and_values_are_means() -> None:
    panel = panel_of({1.0: 1.0, 2.0: 4.0})
    panel.add(LOONGSERVE, {1.0: replace(FOUND, token_ms=3.0)})
    assert panel.rates("loongserve") == [1.0]
    assert panel.mean("loongserve", 1.0, lambda row: row.token_ms) == 2.0


def test_zipf_mixes_are_of_shorter_requests_the_larger_their_parameter() -> None:
    means = []
    for title in ("Zipf 1", "Zipf 1.2", "Zipf 1.4"):
        drawn = scene_of(title).arrivals(10.0, 0)
        assert max(one.input_tokens + one.output_tokens for one in drawn) <= ZIPF_MOST
        means.append(sum(one.input_tokens for one in drawn) / len(drawn))
    assert means == sorted(means, reverse=True)


def test_a_lone_request_is_far_within_its_objectives_with_every_system() -> None:
    scene = scene_of("L-Eval", shorter=10.0)
    for system in (VLLM, REPLICAS, STATIC, LOONGSERVE):
        row = run(Plan(0), scene, system, 0.5)
        assert row.requests > 0
        assert row.refused == row.expired == row.failed == row.unanswered == 0
        assert row.met == 1.0
        assert row.token_ms < row.token_slo / SLO_FACTOR * 8


def test_what_no_instance_holds_is_refused_without_groups_and_never_comes() -> None:
    scene = replace(scene_of("LV-Eval"), arrivals=lambda rate, seed: scene_of("LV-Eval").arrivals(rate, seed)[:9])
    row = run(Plan(0), scene, REPLICAS, 0.05)
    assert row.failed > 0
    assert row.unanswered == row.failed
    assert row.token_ms == row.input_ms == float("inf")
    assert row.met <= 1.0 - row.failed / row.requests


def test_each_engine_has_the_overhead_that_was_measured_of_it_or_all_have_one() -> None:
    assert Plan(0).overhead_of(VLLM) == Plan(0).overhead_of(LOONGSERVE) == "dunlin"
    assert Plan(0, PAPERS).overhead_of(VLLM) == "vllm"
    assert Plan(0, PAPERS).overhead_of(LOONGSERVE) == "a800-lwm-7b"


def test_a_run_that_is_kept_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, made = tmp_path / "runs.jsonl", list[float]()

    def make(plan: Plan, scene: Scene, system: System, rate: float) -> Row:
        made.append(rate)
        return FOUND

    monkeypatch.setattr("benchmarks.papers.loongserve_results.run", make)
    scene = scene_of("Mixed")
    assert LoongRuns(kept).row(Plan(0), scene, LOONGSERVE, 0.1) == FOUND
    assert LoongRuns(kept).row(Plan(0), scene, LOONGSERVE, 0.1) == FOUND
    assert made == [0.1]
    assert list(LoongRuns(kept, only_kept=True).by_rate(Plan(0), scene, LOONGSERVE)) == [0.1]
    assert made == [0.1]


def test_drawn_lengths_are_another_load_than_listed_ones(tmp_path: Path) -> None:
    drawn, listed, others = (list(scenes(folder)) for folder in (None, tmp_path, tmp_path / "others"))
    assert [scene.title for scene in drawn] == [scene.title for scene in listed]
    for one, two, three in zip(drawn, listed, others, strict=True):
        assert len({one.load, two.load, three.load}) == 3


def test_the_tables_say_what_is_refused_and_the_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    panel = panel_of({1.0: 1.0, 2.0: 4.0})
    panel.add(VLLM, {0.5: replace(FOUND, token_ms=4.0, refused=3)})
    show(panel)
    summarise([panel])
    shown = capsys.readouterr().out
    assert "refused" in shown
    assert "0.25 (6.00x)" in shown


def test_the_command_runs_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--figure", "10", "--only", "L-Eval", "--shorter", "12", "--plot", str(tmp_path)]
    assert main(arguments) == 0
    assert (tmp_path / "fig10.png").exists()
    assert "| Fig. 10: L-Eval | all tokens |" in capsys.readouterr().out
