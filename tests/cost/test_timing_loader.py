"""A timing is loaded from a device that ships or from a store of profiles."""

from pathlib import Path

import pytest

from dunlin.cost.device import DeviceError
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import BatchCounts, EngineOverhead, PiecewiseCurve, StepModel
from dunlin.cost.shapes import ShapeError
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError
from dunlin.cost.timing_loader import load_timing

FLAT = PiecewiseCurve((1.0,), (1e-4,))
MEASURED = EngineTiming(
    StepModel(FLAT, FLAT, 1e-5, 1e-9, 0.0, 1e-6, 2e-6, 3e-9), TransferModels(TransferModel(1e-4, 1e9), {}), 1.5, 9, 3
)


def test_the_timing_of_a_store_is_loaded_by_its_path(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(ProfileKey("tiny", "cpu", ""), "2026-01-01", MEASURED)
    assert load_timing(str(tmp_path / "db"), "tiny") == MEASURED
    with pytest.raises(StoreError, match="tiny"):
        load_timing(str(tmp_path / "db"), "llama-2-7b")


def test_the_hosts_overhead_comes_on_top_of_every_step() -> None:
    bare, hosted = (load_timing("a100", "llama-2-7b", overhead=each) for each in (None, EngineOverhead(0.002, 0.005)))
    decode, prefill = BatchCounts(decode_rows=3, decode_context=300), BatchCounts()
    prefill.add_prefill(100, 0)
    assert hosted.step_s(decode) == pytest.approx(bare.step_s(decode) + 0.002)
    assert hosted.step_s(prefill) == pytest.approx(bare.step_s(prefill) + 0.007)
    assert (hosted.slots, hosted.moves) == (bare.slots, bare.moves)


def test_more_gpus_are_asked_for_by_number() -> None:
    assert load_timing("a100", "llama-3-70b", 8).slots > load_timing("a100", "llama-3-70b", 4).slots


@pytest.mark.parametrize(
    ("device", "shape", "tp", "error", "said"),
    [
        ("b300", "llama-2-7b", 1, DeviceError, "known: a100, a100-40g, a800, h100, h200"),
        ("a100", "llama-9", 1, ShapeError, "no shape is called 'llama-9'"),
        ("a100", "llama-2-7b", 3, ShapeError, "do not divide evenly"),
        ("a100", "llama-2-7b", 16, DeviceError, "no all-reduce over 16 GPUs; known: 2, 4, 8"),
        ("a100", "llama-3-70b", 1, ShapeError, "split it over more GPUs"),
    ],
)
def test_what_cannot_be_is_refused(device: str, shape: str, tp: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        load_timing(device, shape, tp)
