"""Profiles: a known cost is found again from its points; a live engine is measured, kept and printed."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

from cli.commands.measure import profile
from cli.main import main
from cli.profiling.engine_probe import EngineProbe
from cli.profiling.engine_process import ProbeError, ProbeOptions
from cli.profiling.profiler import (
    MeasuredProfile,
    fit_steps,
    fit_transfers,
    step_errors,
    step_point,
    step_unsteadiness,
    touch_kv_cache,
    transfer_errors,
)
from cli.profiling.trial_plan import TrialSizes, step_trials
from cli.profiling.trials import ProbedStep, StepTrial, TrialRow, lower_quartile
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import UNSTEADINESS_PIECE_S, BatchCounts, PiecewiseCurve, StepModel
from dunlin.cost.store import ProfileStore, StepPoint, TransferPoint
from dunlin.messages.types import TransferKind
from dunlin.model.builtin import models_folder, resolve_model
from services.instance.process_config import InstanceProcessConfig
from services.instance.step_profile import find_step_times
from simulator.engine.timing import LinearTiming
from tests.settings import configured

TRUE = StepModel(
    tokens=PiecewiseCurve((1.0, 16.0, 512.0), (1e-3, 2e-3, 30e-3)),
    rows=PiecewiseCurve((0.0, 64.0), (0.0, 6e-3)),
    fixed_s=1e-3,
    product_s=5e-8,
    decode_context_s=4e-7,
    sampled_row_s=2e-4,
)


def test_a_late_step_and_the_short_one_after_it_cancel_in_the_course_of_events() -> None:
    short = LinearTiming(fixed_s=0.75 * UNSTEADINESS_PIECE_S)
    batch = BatchCounts(decode_rows=1, decode_context=100)
    late = [StepPoint("service", batch, times * short.fixed_s) for _ in range(20) for times in (1.5, 0.5)]
    assert step_unsteadiness(short, late) == pytest.approx((1.25, 1.0, 0.75) * 10)


def test_a_step_longer_than_a_piece_is_met_for_all_that_it_takes() -> None:
    batch = BatchCounts()
    batch.add_prefill(256)
    pieces = int(TRUE.step_s(batch) / UNSTEADINESS_PIECE_S)
    assert pieces > 3
    assert step_unsteadiness(TRUE, [StepPoint("service", batch, 3.0 * TRUE.step_s(batch))]) == pytest.approx(
        (3.0,) * pieces
    )


def test_a_known_cost_is_found_again() -> None:
    batches = [(trial.regime, trial.batch()) for trial in step_trials(TrialSizes(), 65536, 16384)]
    points = [StepPoint(regime, batch, 0.9 * TRUE.step_s(batch), 0.1 * TRUE.step_s(batch)) for regime, batch in batches]
    found = fit_steps(points)
    assert [found.step_s(batch) for _, batch in batches] == pytest.approx(
        [TRUE.step_s(batch) for _, batch in batches], rel=0.02
    )
    assert max(error.mean for error in step_errors(points)) < 0.02
    assert {error.regime for error in step_errors(points)} == {"decode", "mixed", "prefill", "sampled"}


def test_moves_are_lines_per_kind() -> None:
    sizes = (1000, 10_000, 1_000_000, 30_000_000)
    points = [TransferPoint(TransferKind.SLAB_TO_HOST, size, 1e-3 + size / 2e9) for size in sizes]
    points += [TransferPoint(TransferKind.HOST_TO_SLAB, size, 2e-3 + size / 4e9) for size in sizes]
    moves = fit_transfers(points)
    assert moves.by_kind[TransferKind.HOST_TO_SLAB].fixed_s == pytest.approx(2e-3)
    outward = moves.by_kind[TransferKind.SLAB_TO_HOST]
    assert moves.default == outward
    assert outward.fixed_s == pytest.approx(1e-3)
    assert outward.bytes_per_s == pytest.approx(2e9)
    assert max(error.mean for error in transfer_errors(points)) < 1e-6


def test_moves_beyond_the_cache_are_found_again() -> None:
    """Above 1 MB a byte takes three times as long; one point in nine was disturbed."""
    truth = TransferModel(1e-4, 1e10, near_bytes=1 << 20, far_byte_s=2e-10)
    sizes = [1 << power for power in range(12, 24)]
    late = {1 << 16: 1.5}
    points = [
        TransferPoint(TransferKind.SLAB_TO_HOST, size, truth.move_s(size) * late.get(size, 1.0)) for size in sizes
    ]
    found = fit_transfers(points).by_kind[TransferKind.SLAB_TO_HOST]
    assert found.near_bytes == 1 << 20
    for size in (5000, 700_000, 3_000_000, 20_000_000):
        assert found.move_s(size) == pytest.approx(truth.move_s(size), rel=0.02)


def test_moves_of_two_lengths_are_a_line() -> None:
    points = [TransferPoint(TransferKind.SLAB_TO_HOST, size, 1e-3 + size / 2e9) for size in (1000, 1_000_000)]
    found = fit_transfers(points).default
    assert found.move_s(500_000) == pytest.approx(1e-3 + 500_000 / 2e9)


def test_what_is_usual_forgets_disturbances() -> None:
    assert lower_quartile([1.0, 1.1, 1.2, 9.0, 8.0, 1.1, 1.0, 7.0]) == 1.1
    trial = StepTrial("mixed", (TrialRow(10, 5, decode=False), TrialRow(99)), repeats=4)
    point = step_point(trial, [ProbedStep(2.0, 0.5), ProbedStep(1.0, 0.1), ProbedStep(1.0, 0.1), ProbedStep(3.0, 0.2)])
    assert (point.seconds, point.gap_s) == (1.0, 0.1)
    assert (point.batch.prefix_products, point.batch.decode_context) == (50, 104)


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="cannot start"):
        EngineProbe(ProbeOptions(tmp_path / "nothing", 1 << 20))


def test_a_live_engine_is_measured_kept_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--quick", "--passes", "1", "--repeats", "3", "--kv-mib", "32", "--data-dir", str(tmp_path)]
    assert main(["profile", *flags, "--points"]) == 0
    printed = capsys.readouterr().out
    assert "error on points left out of the fit" in printed
    assert "16 rows and 240 prompt tokens" in printed
    said = [line for line in printed.splitlines() if line.startswith("coarse: ")]
    assert len(said) == 1
    assert "(--quick: few sizes; 1 pass instead of 4" in said[0]
    with ProfileStore(tmp_path / "profiles.db") as store:
        (key,) = store.keys()
        timing, points = store.timing("builtin:tiny"), store.step_points(key)
    assert key.parallelism == "threads=1,dtype=fp32"
    assert len(points) > 30
    assert all(point.seconds > 1e-5 for point in points)
    # The middle one: on a busy machine a few steps take seconds.
    assert 0.5 < median(timing.step_s(each.batch) / (each.seconds + each.gap_s) for each in points) < 2
    assert timing.quality is not None
    assert (timing.quality.quick, timing.quality.passes) == (True, 1)
    assert {regime for regime, _ in timing.quality.steps} == {
        "decode", "mixed", "prefill", "sampled", "service",
    }  # fmt: skip
    assert main(["profile", "--show", str(tmp_path / "profiles.db")]) == 0
    shown = capsys.readouterr().out
    assert "builtin:tiny on " in shown
    assert said[0] in shown


def test_a_core_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--cpu", "4095", "--data-dir", str(tmp_path)]) == 2
    assert "--cpu 4095" in capsys.readouterr().err


def test_what_is_known_is_shown_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--show", "h200", "--model-shape", "llama-3-70b", "--tp", "4"]) == 0
    shown = capsys.readouterr().out
    assert "llama-3-70b on 4 x h200" in shown
    assert re.search(r"turns from memory- to compute-bound at about 1\d\d tokens", shown)
    assert main(["profile", "--show", "a100", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert 100 < plain["compute_bound_tokens"] < 400
    assert plain["steps_s"]["16 rows at context 200"] < 2 * plain["steps_s"]["1 row at context 200"]


def test_strategies_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--show", "a800-lwm-7b"]) == 0
    assert "sp4-tp2" in capsys.readouterr().out


def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--show", "b300"]) == 2
    assert "known: a100, a100-40g, a800, h100, h200; strategies: a800-lwm-7b" in capsys.readouterr().err


def test_an_engine_of_two_ranks_is_measured(tmp_path: Path) -> None:
    model = resolve_model("builtin:tiny", models_folder(tmp_path))
    with EngineProbe(ProbeOptions(model, 8 << 20, threads=2, ranks=2)) as probe:
        turns = probe.measure_step(StepTrial("mixed", (TrialRow(10, 5, decode=False), TrialRow(20)), repeats=3))
        touch_kv_cache(probe)
        assert len(turns) == 3
        assert all(turn.compute_s > 0 for turn in turns)
        assert min(min(times) for times in probe.move_times(64, 1).values()) > 0


def test_an_instance_with_as_many_ranks_finds_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = EngineTiming(TRUE, TransferModels(TransferModel(1e-3, 1e9)), 1.0, 4096, 256)
    monkeypatch.setattr(profile, "_measure", lambda arguments: MeasuredProfile(timing, [], [], []))
    assert main(["profile", "--tp", "2", "--threads", "2", "--data-dir", str(tmp_path)]) == 0
    alone, both = (
        configured(InstanceProcessConfig, model="builtin:tiny", engine__threads=2, engine__ranks=ranks)
        for ranks in (1, 2)
    )
    assert find_step_times(both, tmp_path) == timing
    assert find_step_times(alone, tmp_path) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--cpu", "0"), "--cpu 0 is one core, and --tp 2 needs several"),
        (("--tp", "5"), "5 ranks"),
    ],
)
def test_ranks_that_cannot_be_measured_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert main(["profile", "--tp", "2", "--data-dir", str(tmp_path), *flags]) != 0
    assert said in capsys.readouterr().err
