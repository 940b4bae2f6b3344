"""A run again: what was simulated comes out the same, and a slower engine shows as a difference."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from cli.main import main
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.cost.profile_quality import ProfileQuality
from dunlin.cost.store import ProfileStore, engine_key
from dunlin.workload.loadgen.run_record import RecordedRun, read_run, write_run
from dunlin.workload.traffic.trace import Arrival
from simulator.study.live_comparison import (
    CountDifference,
    Difference,
    count_differences,
    differences,
    resimulate,
    resimulate_whole,
)
from simulator.study.recorded_cluster import RunError
from tests.simulator.study.recorded_facts import recorded_facts

STEP = StepModel(tokens=PiecewiseCurve((1.0, 64.0), (2e-3, 4e-3)), fixed_s=1e-3)
TIMING = EngineTiming(STEP, TransferModels(TransferModel(1e-3, 1e9)), 1.0, 4096, 256)
FACTS = recorded_facts()
KEY = engine_key("builtin:tiny", "cpu", 1, "fp32", deterministic=False)


def live_run() -> RecordedRun:
    """A recorded run: simulated once, as if it had been live."""
    arrivals = [Arrival(0.05 * index, 20 + index, 10) for index in range(20)]
    return RecordedRun(FACTS, arrivals, resimulate(RecordedRun(FACTS, arrivals, []), TIMING))


def test_the_same_timing_gives_the_same_figures() -> None:
    run = live_run()
    found = differences(run.records, resimulate(run, TIMING))
    assert [(each.measure, each.quantile) for each in found] == [
        ("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"),
    ]  # fmt: skip
    assert all(each.live_s > 0 and each.relative == 0 for each in found)


def test_a_slower_engine_shows() -> None:
    run = live_run()
    slower = replace(TIMING, step=replace(STEP, fixed_s=6e-3))
    found = differences(run.records, resimulate(run, slower))
    assert all(each.relative > 0.1 for each in found)


def test_a_run_with_a_temperature_pays_for_drawing_tokens() -> None:
    arrivals = live_run().arrivals
    dear = replace(TIMING, step=replace(STEP, sampled_row_s=5e-3))
    greedy, sampled = (
        resimulate(RecordedRun({**FACTS, "asked": {**FACTS["asked"], "sampled": sampled}}, arrivals, []), dear)
        for sampled in (False, True)
    )
    assert all(each.relative == 0 for each in differences(greedy, live_run().records))
    assert all(each.relative > 0.5 for each in differences(greedy, sampled))


def test_a_run_that_was_sped_up_is_not_sped_up_again(tmp_path: Path) -> None:
    run = live_run()
    fast = {**FACTS, "asked": {**FACTS["asked"], "speed": 4.0}}
    write_run(tmp_path / "run.jsonl", RecordedRun(fast, run.arrivals, run.records))
    again = resimulate(read_run(tmp_path / "run.jsonl"), TIMING)
    assert [record.at_s for record in again] == pytest.approx([record.at_s for record in run.records])


def test_what_was_not_measured_differs_by_nothing() -> None:
    assert Difference("ttft", "p50", 0.0, 1.0).relative == 0.0


def test_too_few_slots_are_counted_as_preemptions() -> None:
    arrivals = [Arrival(0.02 * index, 20 + index, 90) for index in range(30)]
    roomy, tight = (
        resimulate_whole(RecordedRun(recorded_facts(slots=slots), arrivals, []), TIMING).counts for slots in (4096, 256)
    )
    assert roomy["preemptions"] == 0 < tight["preemptions"]
    found = {each.name: each for each in count_differences(tight, roomy)}
    assert found["preemptions"].relative == -1.0
    assert found["moves"].relative == 0.0


def test_what_never_happened_live_differs_without_end() -> None:
    assert CountDifference("moves", 0, 3).relative == inf
    assert CountDifference("moves", 4, 3).relative == -0.25


def test_the_command_shows_counts_where_the_record_holds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = live_run()
    after = {"members": [*FACTS["before"]["members"]]}
    counted = {**after["members"][0], "instance": {"capacity_slots": 4096, "preemptions_total": 7}}
    after["members"][0] = counted
    write_run(tmp_path / "run.jsonl", replace(run, facts={**FACTS, "after": after}))
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", TIMING)
    assert main(["sim", "--against", str(tmp_path / "run.jsonl"), "--profile", str(tmp_path / "db")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("preemptions"))
    assert line.split() == ["preemptions", "7", "0", "-100.0%"]


def test_a_record_without_facts_is_refused() -> None:
    with pytest.raises(RunError, match="record it with"):
        resimulate(RecordedRun({}, [], []), TIMING)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (6.0, 1)])
def test_the_command_compares_with_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    write_run(tmp_path / "run.jsonl", live_run())
    step = replace(STEP, fixed_s=factor * STEP.fixed_s)
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", replace(TIMING, step=step))
    assert main(["sim", "--against", str(tmp_path / "run.jsonl"), "--profile", str(tmp_path / "db")]) == code
    assert "tpot p99" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        (ProfileQuality(False, 4, (("decode", 0.05),)), ""),
        (
            ProfileQuality(True, 4, (("decode", 0.21),)),
            "(--quick: few sizes; its own error is above 10%); its error on steps",
        ),
        (None, "is of an older version"),
    ],
)
def test_every_table_says_when_the_profile_is_coarse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quality: ProfileQuality | None, said: str
) -> None:
    write_run(tmp_path / "run.jsonl", live_run())
    store = str(tmp_path / "db")
    with ProfileStore(tmp_path / "db") as opened:
        opened.save(KEY, "2026-01-01", replace(TIMING, quality=quality))
    workload = ("--workload", "poisson:rate=2,duration=3,lengths=fixed(50,5)")
    profiled = ("--device", store, "--model-shape", "builtin:tiny")
    commands = (
        ("sim", "--against", str(tmp_path / "run.jsonl"), "--profile", store),
        ("sim", *workload, *profiled),
        ("sim", *workload, *profiled, "--json"),
        ("profile", "--show", store),
        ("profile", "--show", store, "--json"),
    )
    for command in commands:
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert said in printed
        assert (f"profile {store}" in printed) is bool(said)


def test_without_a_profile_it_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run.jsonl", live_run())
    assert main(["sim", "--against", str(tmp_path / "run.jsonl"), "--profile", str(tmp_path / "none")]) == 2
    assert "`dunlin profile` makes one" in capsys.readouterr().err
