"""ConServe's experiments in the twin: what is counted, and that batch work is harvested beside the same chat."""

from array import array

import pytest

from benchmarks.papers.conserve import CONSERVE, ONLINE_ONLY, Row, main, percentile, run, scenes, tokens_within
from dunlin.workload.loadgen.stats import RequestRecord


def test_a_prompt_counts_with_its_first_token_and_tokens_until_the_horizon() -> None:
    seen = RequestRecord(0.0, 100, 3, token_s=array("d", [1.0, 2.0, 9.0]))
    late = RequestRecord(0.0, 70, 3, token_s=array("d", [9.0]))
    assert tokens_within([seen, late], 5.0) == 102


def test_percentiles_are_of_the_nearest_rank_and_count_what_never_came() -> None:
    assert percentile([float("inf"), 1.0, 2.0], 50) == 2.0
    assert percentile([float("inf"), 1.0, 2.0], 99) == float("inf")
    assert percentile([], 99) == 0.0


def test_batch_work_is_harvested_beside_the_same_chat() -> None:
    scene = next(scenes(8.0))
    ideal = run(scene, ONLINE_ONLY, 8.0, 0, None)
    row = run(scene, CONSERVE, 8.0, 0, ideal)
    assert ideal.offline == ideal.unanswered == row.unanswered == 0
    assert row.offline > 100
    assert row.online == pytest.approx(ideal.online, rel=0.05)


def test_the_table_names_every_system_and_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--horizon", "3", "--figure", "phases"]) == 0
    said = capsys.readouterr().out
    assert "Fig. 6: on, off, on" in said
    assert all(name in said for name in ("online_only", "vllm++", "conserve", "unified", "5,868 tokens/s"))
    assert Row(1, 2, 3, 4.0, 5.0, 0).total == 9.0
