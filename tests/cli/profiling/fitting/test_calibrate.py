"""Calibration against the real tables, where they are at hand: the fits that ship are theirs, and within the limits."""

import os
from pathlib import Path

import numpy as np
import pytest

from cli.profiling.fitting.calibrate import faster_memory
from cli.profiling.fitting.datasheets import A100, DEVICES
from cli.profiling.fitting.fitted_parts import (
    PiecewisePart,
    all_reduce_parts,
    attention_part,
    attention_rate,
    cross_validate,
    fit_error,
    gemm_part,
    kv_bandwidth,
    stream_parts,
)
from cli.profiling.fitting.regression import surface_values
from cli.profiling.fitting.tables import ATTENTION, COLLECTIVES, GEMM, LAYER_OPS, Table, read_table
from cli.profiling.fitting.validation import (
    KERNELS_ALONE,
    MeasuredIterations,
    fit_overhead,
    fit_strategies,
    step_errors,
    strategy_errors,
    unseen_iterations,
    whole_iterations,
)
from dunlin.cost.device import find_device
from dunlin.cost.models import EngineOverhead
from dunlin.cost.strategies import Strategy
from dunlin.cost.strategy_files import find_strategies
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
        assert fit_error("", "", predicted[mask], part.seconds[mask]).mean < 0.08


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_shipped_attention_is_within_the_limit(device: str, name: str) -> None:
    part = attention_part(name, read_table(TABLES / f"{device}_{name}_attention.csv.gz", ATTENTION))
    predicted = surface_values(getattr(find_device(device), name), part.points)
    for mask in part.regimes.values():
        assert fit_error("", "", predicted[mask], part.seconds[mask]).mean < 0.08


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
def test_composed_steps_are_within_the_limit(device: str) -> None:
    errors = step_errors(find_device(device), TABLES)
    assert len(errors) == 6
    assert max(error.mean for error in errors) < 0.07


@needs_tables
def test_equation_7_fits_every_strategy_and_is_what_ships() -> None:
    found = fit_strategies(TABLES)
    assert found.known() == [Strategy(1, 8), Strategy(2, 4), Strategy(4, 2)]
    for strategy, model in find_strategies("a800-lwm-7b").prefill.items():
        assert model.square_s == pytest.approx(found.prefill[strategy].square_s)
    errors = strategy_errors(TABLES)
    assert max(error.mean for error in errors if error.part.endswith("seen")) < 0.02
    assert max(error.mean for error in errors if error.part.endswith("inside")) < 0.02


@needs_tables
def test_whole_iterations_are_within_the_limit_with_an_overhead_of_other_lengths() -> None:
    errors = whole_iterations(TABLES)
    assert max(error.mean for error in errors if not error.part.endswith(KERNELS_ALONE)) < 0.1
    assert max(error.mean for error in errors if error.part.endswith(KERNELS_ALONE)) > 0.3


@needs_tables
def test_long_iterations_that_no_fit_saw_are_met() -> None:
    """Prompts of up to 500,000 tokens on 8 GPUs. The host's share of a decode step over 8 GPUs was not measured."""
    errors = unseen_iterations(TABLES)
    print(*(f"{error.part} {error.regime}: {error.mean:.1%} off" for error in errors), sep="\n")
    off = {part: [error.mean for error in errors if error.part == part] for part in ("prefill", "decode")}
    assert len(off["prefill"]) == len(off["decode"]) == 6
    assert max(off["prefill"]) < 0.10
    assert max(off["decode"]) < 0.35


def test_an_overhead_is_what_kernels_leave_out() -> None:
    lengths = np.array([10.0, 1000.0])
    kernels, decodes = np.array([0.01, 0.06]), np.array([0.01, 0.011])
    found = fit_overhead(MeasuredIterations(lengths, kernels + 0.007, decodes + 0.002, kernels, decodes))
    assert (found.step_s, found.prefill_s) == pytest.approx((0.002, 0.005))
    assert fit_overhead(MeasuredIterations(lengths, kernels / 2, decodes / 2, kernels, decodes)) == EngineOverhead()


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
def test_all_reduces_are_within_the_limit_held_out(device: str) -> None:
    parts = all_reduce_parts(read_table(TABLES / f"{device}_collectives.csv.gz", COLLECTIVES), DEVICES[device])
    assert sorted(parts) == [2, 4, 8]
    for part in parts.values():
        assert max(error.mean for error in cross_validate(part)) < 0.1
        assert max(error.median for error in cross_validate(part)) < 0.05


@needs_tables
def test_element_wise_operations_are_within_the_limit_held_out() -> None:
    parts = stream_parts(read_table(TABLES / "a100_vidur_layer_ops.csv.gz", LAYER_OPS))
    assert set(parts) == set(find_device("a100").streams)
    for part in parts.values():
        assert max(error.mean for error in cross_validate(part)) < 0.1


def test_streams_take_longer_for_more_bytes() -> None:
    streams = find_device("a100").streams
    assert streams["add"].at(1e5) < streams["add"].at(1e7) < streams["add"].at(1e9)
    for name in ("norm", "rope", "activation"):
        assert streams[name].at(16, 8192) < streams[name].at(1024, 8192) < streams[name].at(8192, 8192)
        assert streams[name].at(1024, 4096) < streams[name].at(1024, 16384)


def test_a_part_of_few_points_holds_out_each_alone() -> None:
    """Of two stages with five points each, a fifth at a time could leave too little of one."""
    sizes = np.array([2.0**e for e in range(10, 20)])
    seconds = np.where(sizes < 2**15, 1e-6 + 1e-9 * sizes, 9e-6 + 1e-9 * sizes)
    part = PiecewisePart("p", (2.0**10, 2.0**15), 2.0**20, sizes[:, None], seconds, {"all": sizes > 0})
    (error,) = cross_validate(part)
    assert error.points == 10
    assert error.mean < 0.01


def test_errors_are_of_points_left_out() -> None:
    """A point that only its own fit could know must show as an error."""
    sizes = np.array([2.0**e for e in range(10, 20) for _ in range(5)])
    columns = {"m": np.ones_like(sizes), "n": np.full_like(sizes, 512.0), "k": sizes, "latency": 1e-9 * sizes}
    rows = sizes == 2**15
    columns["latency"][rows] *= 3
    part = gemm_part(Table({}, columns), A100)
    (error,) = cross_validate(part)
    assert (error.regime, error.points) == ("memory-bound", 50)
    assert error.mean > 0.15
    assert error.median < 0.1


def test_faster_memory_takes_less_for_many_bytes_and_no_less_for_few() -> None:
    surface = Surface(("bytes",), ((10.0, 20.0, 30.0),), (-20.0, -19.0, -9.0))
    faster = faster_memory(surface, 2.0)
    assert faster.at(2.0**31) == surface.at(2.0**30)
    assert faster.at(2.0**11) == surface.at(2.0**10)


def test_faster_memory_takes_more_tokens_of_the_same_row() -> None:
    surface = Surface(
        ("tokens", "row_bytes"), ((0.0, 5.0, 10.0), (10.0, 12.0)), (-20.0, -19.0, -20.0, -19.0, -15.0, -14.0)
    )
    faster = faster_memory(surface, 4.0)
    assert faster.at(4096, 2048) == pytest.approx(surface.at(1024, 2048))
    assert faster.at(4, 2048) == pytest.approx(surface.at(1, 2048))


@needs_tables
@pytest.mark.parametrize("device", list(DEVICES))
def test_the_best_rates_that_ship_are_the_tables(device: str) -> None:
    def table(name: str) -> Table:
        return read_table(TABLES / f"{device}_{name}_attention.csv.gz", ATTENTION)

    shipped = find_device(device)
    assert shipped.attention_flops == pytest.approx(attention_rate(table("prefill")))
    assert shipped.kv_bytes_per_s == pytest.approx(kv_bandwidth(table("decode")))
    assert shipped.attention_flops < shipped.flops == DEVICES[device].flops
    assert shipped.kv_bytes_per_s < shipped.bytes_per_s == DEVICES[device].memory_bytes_per_s
