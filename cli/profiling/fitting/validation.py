"""Errors of composed steps and strategies against tables of whole steps. Needs numpy and the tables, as `calibrate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cli.profiling.fitting.fitted_parts import FitError, fit_error
from cli.profiling.fitting.regression import Array, relative_fit
from cli.profiling.fitting.tables import ITERATIONS, STEPS, Table, read_table
from dunlin.cost.composer import StepComposer
from dunlin.cost.device import Device, Source, find_device
from dunlin.cost.models import BatchCounts, EngineOverhead, StepWithOverhead
from dunlin.cost.shapes import SHAPES, ModelShape
from dunlin.cost.strategies import PrefillModel, Strategies, Strategy

_NAMES = {"llama-3.1-70b": "llama-3-70b", "qwen2.5-14b": "qwen-2.5-14b", "qwen2.5-72b": "qwen-2.5-72b"}
"""Names in the tables of shapes that have another name here."""

KERNELS_ALONE = ", kernels alone"
"""Marks parts that only show the share of the kernels."""
SHAPE = "lwm-text-1m-7b"
_ITERATIONS = "measured_loongserve_a800.csv.gz"
_LOONGSERVE = Source("LoongServe (Peking University)", "Apache-2.0", "prefill and decode iterations on the A800")


def step_errors(device: Device, folder: Path) -> list[FitError]:
    """Linear layers, attention and all-reduces of whole steps, against tables composed of the measured points.

    It shows what fitting, interpolating over shapes and tabulating cost together, per phase.
    """
    table = read_table(folder / f"derived_{device.name}_step_times.csv.gz", STEPS)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for part, phase, predicted, seconds in _parts(device, table):
        found.setdefault((part, phase), []).append((predicted, seconds))
    return [fit_error(part, phase, *np.array(pairs).T) for (part, phase), pairs in sorted(found.items())]


def _parts(device: Device, table: Table) -> Iterator[tuple[str, str, float, float]]:
    composers: dict[tuple[str, int], StepComposer] = {}
    numbers, words = table.numbers, table.words
    for row, name in enumerate(words["model"]):
        shape = SHAPES.get(_NAMES.get(name, name))
        if shape is None:
            continue
        tp, batch, length = (int(numbers[key][row]) for key in ("tp", "batch", "seq_len"))
        composer = composers.setdefault((name, tp), StepComposer(device, shape, tp))
        phase = words["phase"][row]
        linear, attention, reduced = _predicted(device, composer, shape, tp, batch, length, phase == "prefill")
        yield "linear layers and head", phase, linear, numbers["linear"][row]
        yield "attention", phase, attention, numbers["attention"][row]
        if tp > 1:
            yield "all-reduces", phase, reduced, numbers["allreduce"][row]


def _predicted(
    device: Device, composer: StepComposer, shape: ModelShape, tp: int, batch: int, length: int, prefill: bool
) -> tuple[float, float, float]:
    tokens = batch * length if prefill else batch
    linear = shape.layers * composer.linear_s(tokens) + device.gemm.at(batch, shape.vocabulary / tp, shape.hidden)
    if prefill:
        attention = composer.prefill_attention_s(tokens, (length + 1) / 2)
    else:
        attention = composer.decode_kernel_s(batch, length)
    return linear, shape.layers * attention, shape.layers * composer.all_reduce_s(tokens)


@dataclass(frozen=True, slots=True)
class MeasuredIterations:
    """Whole iterations of another engine on one GPU: what was measured, and what composed kernels come to."""

    lengths: Array
    prefill: Array
    decode: Array
    prefill_kernels: Array
    decode_kernels: Array


def read_iterations(folder: Path) -> MeasuredIterations:
    """LoongServe's, on one A800, beside composed A100 steps (the same chip)."""
    table = read_table(folder / _ITERATIONS, ITERATIONS)
    numbers = table.where((table.numbers["sp"] == 1) & (table.numbers["tp"] == 1)).numbers
    model = StepComposer(find_device("a100"), SHAPES[SHAPE]).step_model()
    prefills, decodes = [], []
    for length in map(int, numbers["input_len"]):
        prefills.append(model.step_s(BatchCounts(1, length, 0, length * length)))
        decodes.append(model.step_s(BatchCounts(decode_rows=1, decode_context=length + 1)))
    return MeasuredIterations(
        numbers["input_len"],
        numbers["prefill_latency"],
        numbers["decode_latency"],
        np.array(prefills),
        np.array(decodes),
    )


def fit_overhead(found: MeasuredIterations, keep: NDArray[np.bool_] | None = None) -> EngineOverhead:
    """The overhead nearest to the measured iterations where `keep` is true, in relative error."""
    mask = np.ones(len(found.lengths), dtype=bool) if keep is None else keep
    step_s = _constant(found.decode[mask], found.decode_kernels[mask])
    whole_s = _constant(found.prefill[mask], found.prefill_kernels[mask])
    return EngineOverhead(step_s, max(0.0, whole_s - step_s))


def _constant(seconds: Array, kernels: Array) -> float:
    weights = 1.0 / seconds**2
    return max(0.0, float((weights @ (seconds - kernels)) / weights.sum()))


def whole_iterations(folder: Path) -> list[FitError]:
    """Kernels alone; and with the overhead that a fit to the other lengths finds."""
    found = read_iterations(folder)
    errors = []
    for i, length in enumerate(found.lengths):
        overhead = fit_overhead(found, np.arange(len(found.lengths)) != i)
        both = (
            ("prefill", found.prefill, found.prefill_kernels, overhead.step_s + overhead.prefill_s),
            ("decode", found.decode, found.decode_kernels, overhead.step_s),
        )
        for name, measured, kernels, added_s in both:
            one = slice(i, i + 1)
            errors.append(fit_error(name + KERNELS_ALONE, f"length {length:.0f}", kernels[one], measured[one]))
            errors.append(fit_error(name, f"length {length:.0f}", kernels[one] + added_s, measured[one]))
    return sorted(errors, key=lambda error: error.part)


def unseen_iterations(folder: Path) -> list[FitError]:
    """LoongServe's iterations over 8 A800 with tensor parallelism against composed A100 steps: lengths of 1,000 to
    500,000, most beyond every table, none of which any coefficient was fitted to but the overhead of the engine.
    """
    table = read_table(folder / _ITERATIONS, ITERATIONS)
    rows = table.where((table.numbers["sp"] == 1) & (table.numbers["tp"] == 8)).numbers
    overhead = fit_overhead(read_iterations(folder))
    step = StepWithOverhead(StepComposer(find_device("a100"), SHAPES[SHAPE], 8).step_model(), overhead)
    errors = []
    for i, (batch, length) in enumerate(zip(map(int, rows["batch"]), map(int, rows["input_len"]), strict=True)):
        prefill = step.step_s(BatchCounts(batch, batch * length, 0, batch * length**2))
        decode = step.step_s(BatchCounts(decode_rows=batch, decode_context=batch * (length + 1)))
        for part, seconds, measured in (
            ("prefill", prefill, rows["prefill_latency"][i]),
            ("decode", decode, rows["decode_latency"][i]),
        ):
            errors.append(fit_error(part, f"{batch} x {length:,}", np.array([seconds]), np.array([measured])))
    return sorted(errors, key=lambda error: error.part)


def fit_strategies(folder: Path) -> Strategies:
    """LoongServe's equation 7 per (sequence, tensor) parallelism that was measured at five points or more."""
    table = read_table(folder / _ITERATIONS, ITERATIONS)
    return Strategies(
        name="a800-lwm-7b",
        title="LoongServe on 8 NVIDIA A800 80 GB, LWM-Text-1M-7B",
        shape=SHAPE,
        prefill={strategy: _fitted(rows) for strategy, rows in _strategies(table)},
        overhead=fit_overhead(read_iterations(folder)),
        sources=(_LOONGSERVE,),
        notes={
            "overhead": "of the engine that was measured, fitted to two lengths on one GPU over composed A100 kernels",
            "fixed_s": "of sp2-tp4 and sp1-tp8 no short prefill was measured; that of sp4-tp2 rests on one point",
        },
    )


def _fitted(rows: Table) -> PrefillModel:
    features, seconds = _lengths(rows)
    tokens = features[:, 1]
    fixed, token, square = map(float, relative_fit(features, seconds))
    return PrefillModel(fixed, token, square, int(tokens.min()), int(tokens.max()), len(seconds))


def strategy_errors(folder: Path) -> list[FitError]:
    """Of each point of each strategy, predicted by a fit to the others: all of them; those inside, without which the
    rest still spans the same range (an end predicted by the others is a prediction beyond what they know); and `seen`,
    by the fit to all.
    """
    table = read_table(folder / _ITERATIONS, ITERATIONS)
    errors = []
    for strategy, rows in _strategies(table):
        features, seconds = _lengths(rows)
        each = np.arange(len(seconds))
        predicted = np.array([features[i] @ relative_fit(features[each != i], seconds[each != i]) for i in each])
        inside = np.array([not _is_end(features[:, 1:], i) for i in range(len(each))])
        errors.append(fit_error("prefill", str(strategy), predicted, seconds))
        errors.append(fit_error("prefill, inside", str(strategy), predicted[inside], seconds[inside]))
        errors.append(fit_error("prefill, seen", str(strategy), features @ relative_fit(features, seconds), seconds))
    return errors


def _is_end(features: Array, point: int) -> bool:
    """Whether this point alone has the least or the most of any feature."""
    for column in features.T:
        others = np.delete(column, point)
        if not others.min() <= column[point] <= others.max():
            return True
    return False


def _strategies(table: Table) -> Iterator[tuple[Strategy, Table]]:
    pairs = sorted({Strategy(int(sp), int(tp)) for sp, tp in table.columns("sp", "tp")})
    for sp, tp in pairs:
        rows = table.where((table.numbers["sp"] == sp) & (table.numbers["tp"] == tp))
        if len(rows) >= 5:
            yield Strategy(sp, tp), rows


def _lengths(rows: Table) -> tuple[Array, Array]:
    """Features 1, sum of lengths, sum of their squares; seconds of a prefill."""
    batch, length = rows.numbers["batch"], rows.numbers["input_len"]
    return np.stack([np.ones_like(batch), batch * length, batch * length**2], axis=1), rows.numbers["prefill_latency"]
