"""The parts of the live comparison that need no cluster; that it runs is seen by running it."""

import json

import pytest

from benchmarks.harness.report import BenchmarkResult
from benchmarks.papers.conserve_live import (
    BATCH_TOKENS,
    LiveRow,
    _conclude,
    _objectives,
    _row_of,
    batch_lines,
    usual_rate,
)
from dunlin.workload.loadgen.stats import RequestRecord
from simulator.engine.timing import LinearTiming


def record(outcome: str, *token_s: float) -> RequestRecord:
    return RequestRecord(0.5, 10, 2, token_s=list(token_s), end_s=3.0, outcome=outcome)


def test_the_rate_is_of_eight_rows_at_a_time() -> None:
    assert usual_rate(LinearTiming(fixed_s=0.01)) == pytest.approx(1 / (0.01 + 32 * 0.01 / 8))


def test_lines_are_requests_with_prompts_of_their_own() -> None:
    lines = list(batch_lines(20, 1000))
    assert [line["custom_id"] for line in lines] == [str(number) for number in range(20)]
    assert {len(line["body"]["prompt"]) for line in lines} == {BATCH_TOKENS}
    assert len({json.dumps(line["body"]["prompt"]) for line in lines}) == 20


def test_a_request_that_failed_has_no_first_token_and_is_counted() -> None:
    row = _row_of([record("ok", 1.0, 2.0, 2.5), record("refused")], spent_s=2.0)
    assert (row.ttft_s, row.tpot_s, row.failed) == ([0.5, float("inf")], [0.75], 1)
    assert row.chat_rate == (10 + 3 + 10) / 2.0
    outcome = BenchmarkResult("")
    _conclude(outcome, {"unified": [row]})
    assert outcome.failures == ["unified: 1 chat requests failed"]


def test_the_ideal_s_p99_are_the_objectives() -> None:
    ideal = LiveRow(ttft_s=[0.1] * 99 + [9.0], tpot_s=[0.02])
    assert _objectives(ideal) == ("instance.objectives.ttft_s=0.1000", "instance.objectives.tpot_s=0.0200")
