"""The held-out comparison: its rule for speed finds a slower machine, and what is the same differs by nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulation.held_out import (
    SIMULATIONS,
    ComparedPart,
    HeldOutPart,
    Speed,
    at_speed,
    capacity,
    compared,
    figures,
    read_parts,
    speed_of,
    with_errors,
)
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.workload.loadgen.run_record import RecordedRun, write_run
from dunlin.workload.loadgen.stats import RequestRecord, summarize
from dunlin.workload.traffic.trace import Arrival
from simulator.study.live_comparison import resimulate_whole
from tests.simulator.study.recorded_facts import recorded_facts

STEP = StepModel(tokens=PiecewiseCurve((1.0, 64.0), (2e-3, 4e-3)), fixed_s=1e-3)
HOST = ProcessCosts(MessageCosts(1e-4), MessageCosts(1e-4), 5e-4, True)
TIMING = EngineTiming(STEP, TransferModels(TransferModel(1e-3, 1e9)), 1.0, 4096, 256, host=HOST)
FACTS = recorded_facts(2, slots=256)


def live_run(timing: EngineTiming, requests: int = 24, apart_s: float = 0.02) -> RecordedRun:
    """A run that was simulated once, as if it had been live; with so little between requests slots do not suffice."""
    arrivals = [Arrival(apart_s * index, 20 + index, 90) for index in range(requests)]
    run = RecordedRun(FACTS, arrivals, [])
    return replace(run, records=resimulate_whole(run, timing).records)


def test_references_tell_how_slow_steps_and_hops_were() -> None:
    live = live_run(at_speed(TIMING, Speed(1.5, 9e-4)), 12, 0.15)
    found = speed_of((live, live), TIMING)
    assert found.factor == pytest.approx(1.5, rel=0.02)
    assert found.hop_s == pytest.approx(9e-4, rel=0.1)
    again = summarize(resimulate_whole(live, at_speed(TIMING, found)).records)
    assert again.ttft_s.p50 == pytest.approx(summarize(live.records).ttft_s.p50, rel=0.02)


def test_a_part_of_the_modelled_speed_differs_by_nothing() -> None:
    live = live_run(TIMING)
    counts = dict(resimulate_whole(live, TIMING).counts)
    one, speed = compared(HeldOutPart(live, live, live, counts), TIMING)
    assert counts["preemptions"] > 0
    assert speed.factor == pytest.approx(1.0, rel=1e-3)
    assert len(one.simulated) == SIMULATIONS * len(live.records)
    assert all(abs(each.relative) < 0.01 for each in figures([one]))


def part(late_s: float, preemptions: int, sequence: int = 0) -> ComparedPart:
    """Requests that came so late, and so many preemptions, of which the twin knows nothing."""
    slow = [RequestRecord(0.0, 10, 2, token_s=[1.0 + late_s, 2.0 + late_s], end_s=3.0, outcome="ok")]
    fast = [RequestRecord(0.0, 10, 2, token_s=[1.0, 2.0], end_s=3.0, outcome="ok")]
    live = {"preemptions": preemptions, "hit tokens": 0, "moves": 0, "recomputed tokens": 0}
    return ComparedPart(sequence, slow, fast, live, dict.fromkeys(live, 0.0))


def test_the_error_of_a_figure_is_how_much_parts_differ() -> None:
    same = {getattr(each.found, "quantile", "") + str(each.found): each.error for each in with_errors([part(1, 4)] * 5)}
    assert set(same.values()) == {0.0}
    unlike = with_errors([part(0.0, 4), part(0.5, 4), part(1.0, 4), part(2.0, 4)])
    by_name = {getattr(each.found, "measure", "count"): each.error for each in unlike}
    assert by_name["ttft"] > 0.05
    assert figures([part(1.0, 4), part(1.0, 2)])[4].relative == -1.0


def test_what_parts_the_sequences_is_no_error() -> None:
    parts = [part(0.0, 4, 1), part(2.0, 4, 2), part(0.0, 4, 1), part(2.0, 4, 2)]
    assert {each.error for each in with_errors(parts)} == {0.0}
    alike = [part(0.0, 4, 1), part(2.0, 4, 1), part(0.0, 4, 1), part(2.0, 4, 1)]
    assert max(each.error for each in with_errors(alike)) > 0.05


def test_parts_are_read_with_the_references_beside_them_and_failed_ones_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = live_run(TIMING, 3)
    for number in range(3):
        facts = json.loads(json.dumps(FACTS))
        facts["before"]["members"][0]["instance"]["preemptions_total"] = 10 * number
        write_run(tmp_path / f"reference-{number}.jsonl", replace(run, facts=facts))
        if number:
            facts["before"]["members"][0]["instance"]["preemptions_total"] = 10 * number - 7
            records = [replace(record, outcome="ok" if number == 1 else "error") for record in run.records]
            write_run(tmp_path / f"part-{number}.jsonl", replace(run, facts=facts, records=records))
    (found,) = read_parts(tmp_path)
    assert found.counts["preemptions"] == 7
    assert "part 2" in capsys.readouterr().out


def test_slower_steps_bear_less() -> None:
    slow = replace(TIMING, step=replace(STEP, fixed_s=1e-2))
    assert capacity(slow) < capacity(TIMING)
