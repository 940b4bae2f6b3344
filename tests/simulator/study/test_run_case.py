"""Cases become clusters, and clusters outcomes; what cannot be is said before anything runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.commands.simulate.table import render
from dunlin.cost.engine_overheads import find_overhead
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import BatchCounts, PiecewiseCurve, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.cost.store import ProfileKey, ProfileStore
from dunlin.cost.timing_loader import load_timing
from dunlin.workload.traffic.prompts import answer_bound
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.report import figures
from simulator.study.run_case import SimError, cluster_of, run_case
from simulator.study.sweep import Case

LOAD = "poisson:rate=8,duration=5,lengths=fixed(200,20),prefix=shared(1,128)"


def case(**changes: Any) -> Case:
    return Case(**{"preset": "chunked", "instances": 1, "device": "a100", "shape": "llama-3-8b", **changes})


def test_every_request_is_answered_and_its_start_known() -> None:
    arrivals = read_workload(LOAD)
    seen: list[float] = []
    outcome = run_case(case(), arrivals, seen.append)
    assert [record.outcome for record in outcome.records] == ["ok"] * len(arrivals)
    assert [len(record.token_s) for record in outcome.records] == [20] * len(arrivals)
    assert all(
        0 < queued < record.token_s[0] - record.at_s
        for queued, record in zip(outcome.queued_s, outcome.records, strict=True)
    )
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    assert outcome.story == ()


@pytest.mark.parametrize("preset", ["loongserve", "static_sp"])
def test_the_start_of_a_request_that_a_group_computes_is_known(preset: str) -> None:
    in_groups = (("dispatcher.placement.long_tokens", 1),)
    arrivals = read_workload("poisson:rate=2,duration=4,lengths=mixed(fixed(20000,4),fixed(500,4))", 1)
    outcome = run_case(case(preset=preset, instances=4, settings=in_groups), arrivals)
    assert all(record.outcome == "ok" for record in outcome.records)
    assert all(
        0 < queued < record.token_s[0] - record.at_s
        for queued, record in zip(outcome.queued_s, outcome.records, strict=True)
    )


def test_requests_that_begin_alike_share_what_was_computed() -> None:
    shared = figures(run_case(case(), read_workload(LOAD)), {}).cached_share
    apart = figures(run_case(case(), read_workload(LOAD.replace("shared(1,", "shared(10000000,"))), {}).cached_share
    assert shared > 0.5
    assert apart < 0.05


def test_a_case_repeats_exactly() -> None:
    arrivals = read_workload("gamma:rate=8,cv=2,duration=4,lengths=lognormal(300,30)")
    one, two = (run_case(case(instances=2, preset="llumnix"), arrivals) for _ in range(2))
    assert one.records == two.records
    assert one.tracks == two.tracks
    assert one.events == two.events


def test_more_gpus_are_faster() -> None:
    arrivals = read_workload("poisson:rate=10,duration=4,lengths=fixed(1500,20)")
    one, two = (figures(run_case(case(instances=count), arrivals), {}) for count in (1, 2))
    assert two.report.ttft_s.p90 < one.report.ttft_s.p90
    assert two.instances == 2


def test_a_step_of_many_seconds_is_no_hang() -> None:
    arrivals = read_workload("poisson:rate=1,requests=1,lengths=fixed(100000,2)")
    (record,) = run_case(case(preset="vllm"), arrivals).records
    whole = BatchCounts()
    whole.add_prefill(100_000)
    step_s = load_timing("a100", "llama-3-8b").step_s(whole)
    assert step_s > 6.0  # an instance waits for 3 s for a sign of life: pieces of layers give one
    assert record.token_s[0] - record.at_s == pytest.approx(step_s, rel=0.05)


@pytest.mark.parametrize("preset", ["fifo", "vllm"])
def test_layers_longer_than_the_watch_are_no_hang(preset: str) -> None:
    arrivals = read_workload("poisson:rate=1,requests=2,lengths=fixed(300000,2)")
    outcome = run_case(case(preset=preset, instances=1), arrivals)
    assert [record.outcome for record in outcome.records] == ["ok", "ok"]
    whole = BatchCounts()
    whole.add_prefill(300_000)
    assert load_timing("a100", "llama-3-8b").step_s(whole) / 32 > 3.0  # the limits of instance and monitor


def test_the_scheduler_is_not_told_how_long_an_answer_will_be() -> None:
    arrivals = read_workload("poisson:rate=2,requests=9,lengths=uniform(50..80,10..70)", seed=3)
    unknown, known = (run_case(case(oracle=oracle, story_of="slowest"), arrivals) for oracle in (False, True))
    for outcome in (unknown, known):
        assert [record.outcome for record in outcome.records] == ["ok"] * 9
        assert [len(record.token_s) for record in outcome.records] == [each.output_tokens for each in arrivals]
    assert "(stop)" in unknown.story[-1]
    assert "(length)" in known.story[-1]
    assert answer_bound(arrivals) in (64, 128)


def test_a_hosts_overhead_slows_every_token() -> None:
    arrivals = read_workload("poisson:rate=1,requests=1,lengths=fixed(500,50)")
    bare, hosted = (run_case(case(overhead=text), arrivals).records[0] for text in ("0", "2,5"))
    assert hosted.token_s[0] - bare.token_s[0] == pytest.approx(0.007, abs=1e-6)
    assert hosted.token_s[-1] - bare.token_s[-1] == pytest.approx(0.007 + 49 * 0.002, abs=1e-6)


def test_dunlins_own_processes_take_what_a_profile_measured(tmp_path: Path) -> None:
    arrivals = read_workload("poisson:rate=1,requests=1,lengths=fixed(50,9)")
    step = StepModel(tokens=PiecewiseCurve((1.0, 64.0), (2e-3, 4e-3)), fixed_s=1e-3)
    timing = EngineTiming(step, TransferModels(TransferModel(1e-3, 1e9)), 1.0, 4096, 256)
    host = ProcessCosts(MessageCosts(step_s=2e-4), MessageCosts(), hop_s=1e-4, shares_core=True)

    def tpot_s(of: EngineTiming) -> float:
        with ProfileStore(tmp_path / "db") as store:
            store.save(ProfileKey("builtin:tiny", "cpu", ""), "2026-01-01", of)
        profiled = case(device=str(tmp_path / "db"), shape="builtin:tiny", overhead="0")
        token_s = run_case(profiled, arrivals).records[0].token_s
        return (token_s[-1] - token_s[0]) / 8

    free, paid = tpot_s(timing), tpot_s(replace(timing, host=host))
    assert paid - free == pytest.approx(2e-4, abs=1.5e-4)


def test_an_overhead_is_the_engines_that_a_preset_stands_for_and_is_said() -> None:
    arrivals = read_workload("poisson:rate=1,requests=1,lengths=fixed(500,50)")
    for preset, name in (("vllm", "vllm"), ("chunked", "dunlin")):
        by_preset, by_name = (run_case(case(preset=preset, overhead=text), arrivals) for text in ("", name))
        assert by_preset.records[0].token_s == by_name.records[0].token_s
        assert by_preset.overhead == str(find_overhead(name))
        assert f"engine overhead of {preset}: {find_overhead(name)}" in render([figures(by_preset, {})])


def test_classes_come_through() -> None:
    arrivals = read_workload("poisson:4,duration=2,class=chat + poisson:4,duration=2,class=batch")
    assert set(figures(run_case(case(), arrivals), {}).classes) == {"chat", "batch"}


@pytest.mark.parametrize("asked", ["slowest", "req-5-3"])
def test_a_story_is_that_of_the_live_cluster(asked: str) -> None:
    outcome = run_case(case(story_of=asked), read_workload(LOAD))
    assert outcome.story[0].startswith("req-")
    assert any("dispatcher-0 handed it to instance-0 as attempt 1, with 200 prompt" in line for line in outcome.story)
    assert "dispatcher-0 ended it (stop) after 20 tokens" in outcome.story[-1]


def test_only_as_much_is_asked_as_the_memory_holds() -> None:
    arrivals = read_workload("poisson:rate=1,requests=1,lengths=fixed(5000000,10)")
    outcome = run_case(case(), arrivals)
    assert outcome.records[0].clipped
    assert outcome.records[0].outcome == "ok"
    assert run_case(case(max_positions=4096), arrivals).records[0].input_tokens == 4086


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device": "tpu"}, "no device is called 'tpu'; known: a100, a100-40g, a800, h100, h200"),
        ({"shape": "nix"}, "no shape is called 'nix'.*llama-3-8b"),
        ({"shape": "llama-3-70b"}, "needs 141 GB for its weights"),
        ({"tp": 3}, "cannot run on 3 GPUs"),
        ({"overhead": "much"}, "'much' is no overhead"),
        ({"settings": (("instance.speed", 1),)}, "InstanceConfig has no setting 'speed'; it has .*budget_tokens"),
        (
            {"settings": (("instance.scheduler.max_running", 0),)},
            "max_running is 0: needs a whole number of sequences, at least 1",
        ),
        ({"settings": (("dispatcher.placement.policy", "x"),)}, "policy is x: needs one of least_loaded"),
        ({"story_of": "nonsense"}, "'nonsense' is not a request id"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SimError, match=complaint):
        run_case(case(**changes), read_workload("poisson:rate=1,requests=1,lengths=fixed(10,2)"))


def test_settings_win_over_the_presets() -> None:
    spec = cluster_of(case(instances=17, tp=1, settings=(("instance.scheduler.budget_tokens", 99),)))
    assert spec.instance_config("").scheduler.budget_tokens == 99
    assert spec.nodes == 3
