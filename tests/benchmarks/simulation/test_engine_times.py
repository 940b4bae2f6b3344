"""Interrupts and moves of one engine, live and modelled: the model's times by hand, and that both take the commands."""

from pathlib import Path

import pytest

from benchmarks.simulation import engine_times
from benchmarks.simulation.engine_times import (
    EngineTimes,
    EngineTrials,
    ModelledEngine,
    TimedInterrupt,
    TimedMove,
    engine_differences,
    measured,
    modelled,
)
from cli.profiling.engine_probe import EngineProbe
from cli.profiling.engine_process import ProbeOptions
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.messages.types import TransferKind
from tests.engine.build import make_checkpoint

TOKEN_S = 1e-4
COPY = TransferModel(fixed_s=1e-3, bytes_per_s=1e6)
TIMING = EngineTiming(
    StepModel(tokens=PiecewiseCurve((0.0, 1000.0), (0.0, 1000 * TOKEN_S)), rows=PiecewiseCurve((0.0, 1.0), (0.0, 0.0))),
    TransferModels(COPY, {}),
    load_s=1.0,
    slots=4096,
    kv_bytes_per_token=100,
    unsteadiness=(3.0,),
    layers=4,
)


def engine(slowness: float = 1.0) -> ModelledEngine:
    return ModelledEngine(TIMING, slowness, 4096, 4096)


def test_a_modelled_response_lasts_until_the_next_safepoint() -> None:
    """A step of 200 tokens takes 20 ms: a safepoint every 5 ms, at each of its four layers."""
    assert engine().interrupt_time(200, 0.006) == pytest.approx(0.004)
    assert engine().interrupt_time(200, 0.0149) == pytest.approx(0.0001)
    assert engine(slowness=0.5).interrupt_time(200, 0.006) == pytest.approx(0.0015), "every 2.5 ms"
    assert engine().interrupt_time(200, 0.021) is None, "the step had ended"


def test_a_modelled_move_takes_what_the_profile_says() -> None:
    one = engine()
    for kind in (TransferKind.SLAB_TO_HOST, TransferKind.HOST_TO_SLAB):
        assert one.move_time(kind, 50) == pytest.approx(1e-3 + 50 * 100 / 1e6)


def test_all_trials_are_modelled() -> None:
    interrupts = [TimedInterrupt(200, 0.006, 1.0), TimedInterrupt(200, 0.03, 1.0), TimedInterrupt(200, 0.006, 2.0)]
    moves = [TimedMove(TransferKind.SLAB_TO_HOST, 10, 1.0), TimedMove(TransferKind.HOST_TO_SLAB, 20, 1.5)]
    times = modelled(TIMING, EngineTrials(interrupts, moves), 4096, 4096)
    assert times.interrupt_s == pytest.approx([0.004, 0.004]), "one came too late"
    assert times.move_s == pytest.approx([2e-3, 4.5e-3]), "the machine was slower by half for the second"


def test_differences_are_of_each_measure_and_quantile() -> None:
    found = engine_differences(EngineTimes([0.01], [0.02]), EngineTimes([0.011], [0.01]))
    assert [(each.measure, each.quantile) for each in found] == [
        ("interrupt", "p50"),
        ("interrupt", "p99"),
        ("move", "p50"),
        ("move", "p99"),
    ]
    assert [each.relative for each in found] == pytest.approx([0.1, 0.1, -0.5, -0.5])


def test_a_live_engine_is_interrupted_and_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_times, "PROMPTS", (900, 100_000))
    monkeypatch.setattr(engine_times, "COPIES", (16, 100_000))
    with EngineProbe(ProbeOptions(make_checkpoint(tmp_path), 8 << 20)) as probe:
        times, trials = measured(probe, TIMING, interrupts=4, moves=2)
        assert len(times.interrupt_s) == len(trials.interrupts) <= 4
        assert len(times.move_s) == len(trials.moves) == 4, "two lengths, of which one does not fit, there and back"
        assert min([*times.interrupt_s, *times.move_s]) > 0
        assert all(trial.tokens == 900 and trial.slowness > 0 for trial in trials.interrupts)
        assert all(move.tokens == 16 and move.slowness > 0 for move in trials.moves)
        assert probe.prompt_time(900) > 0, "the engine goes on"
