"""Calibration against the real tables, where they are at hand: the fits that ship are theirs, and within the limits."""

import os
from pathlib import Path

import numpy as np
import pytest

from dunlin.cost.calibrate import A100, DEVICES, attention_part, error_of, faster_memory, gemm_part, stream_parts
from dunlin.cost.checks import fit_strategies, step_errors, strategy_errors, whole_iterations
from dunlin.cost.device import find_device
from dunlin.cost.fit import surface_values
from dunlin.cost.importers import ATTENTION, GEMM, LAYER_OPS, Table, read_table
from dunlin.cost.surface import Surface

TABLES = Path(os.environ.get("DUNLIN_SHARED", "nowhere")) / "data" / "calibration"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="the measured tables are not here")


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
def test_shipped_products_are_within_the_limit(device: str) -> None:
    part = gemm_part(read_table(TABLES / f"{device}_gemm.csv.gz", GEMM), DEVICES[device])
    predicted = surface_values(find_device(device).gemm, part.points)
    assert {*part.regimes} == {"memory-bound", "compute-bound"}
    for mask in part.regimes.values():
        assert error_of("", "", predicted[mask], part.seconds[mask]).mean < 0.08


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_shipped_attention_is_within_the_limit(device: str, name: str) -> None:
    part = attention_part(name, read_table(TABLES / f"{device}_{name}_attention.csv.gz", ATTENTION))
    predicted = surface_values(getattr(find_device(device), name), part.points)
    for mask in part.regimes.values():
        assert error_of("", "", predicted[mask], part.seconds[mask]).mean < 0.08


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
def test_composed_steps_are_within_the_limit(device: str) -> None:
    errors = step_errors(find_device(device), TABLES)
    assert len(errors) == 6
    assert max(error.mean for error in errors) < 0.07


@needs_tables
def test_equation_7_fits_every_strategy() -> None:
    assert set(fit_strategies(TABLES)) == {(1, 8), (2, 4), (4, 2)}
    seen = [error.mean for error in strategy_errors(TABLES) if error.part.endswith("seen")]
    assert max(seen) < 0.02
    assert {error.part for error in whole_iterations(TABLES)} == {"prefill", "decode"}


@needs_tables
def test_streams_take_longer_for_more_bytes() -> None:
    parts = stream_parts(read_table(TABLES / "a100_vidur_layer_ops.csv.gz", LAYER_OPS))
    assert set(parts) == set(find_device("a100").streams)
    for part in parts.values():
        surface = part.fit()
        assert surface.at(1e5) < surface.at(1e7) < surface.at(1e9)


def test_errors_are_of_points_left_out() -> None:
    """A point that only its own fit could know must show as an error."""
    sizes = np.array([2.0**e for e in range(10, 20) for _ in range(5)])
    columns = {"m": np.ones_like(sizes), "n": np.full_like(sizes, 512.0), "k": sizes, "latency": 1e-9 * sizes}
    rows = sizes == 2**15
    columns["latency"][rows] *= 3
    part = gemm_part(Table({}, columns), A100)
    (error,) = part.errors()
    assert (error.regime, error.points) == ("memory-bound", 50)
    assert error.mean > 0.15
    assert error.median < 0.1


def test_faster_memory_takes_less_for_many_bytes_and_no_less_for_few() -> None:
    surface = Surface(("bytes",), ((10.0, 20.0, 30.0),), (-20.0, -19.0, -9.0))
    faster = faster_memory(surface, 2.0)
    assert faster.at(2.0**31) == surface.at(2.0**30)
    assert faster.at(2.0**11) == surface.at(2.0**10)
