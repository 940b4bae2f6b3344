"""How far composed steps and strategies are from tables of whole steps. Needs numpy and the tables, as `calibrate`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dunlin.cost.calibrate import Error, error_of
from dunlin.cost.compose import Composer
from dunlin.cost.device import Device, find_device
from dunlin.cost.fit import relative_fit
from dunlin.cost.importers import ITERATIONS, STEPS, Table, read_table
from dunlin.cost.models import Batch, PrefillModel
from dunlin.cost.shapes import SHAPES, ModelShape

_NAMES = {"llama-3.1-70b": "llama-3-70b", "qwen2.5-14b": "qwen-2.5-14b", "qwen2.5-72b": "qwen-2.5-72b"}
"""How tables call shapes that have another name here."""


def step_errors(device: Device, folder: Path) -> list[Error]:
    """Linear layers, attention and all-reduces of whole steps, against tables composed of the measured points.

    It shows what fitting, interpolating over shapes and tabulating cost together, per phase.
    """
    table = read_table(folder / f"derived_{device.name}_step_times.csv.gz", STEPS)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for part, phase, predicted, seconds in _parts(device, table):
        found.setdefault((part, phase), []).append((predicted, seconds))
    return [error_of(part, phase, *np.array(pairs).T) for (part, phase), pairs in sorted(found.items())]


def _parts(device: Device, table: Table) -> Iterator[tuple[str, str, float, float]]:
    composers: dict[tuple[str, int], Composer] = {}
    numbers, words = table.numbers, table.words
    for row, name in enumerate(words["model"]):
        shape = SHAPES.get(_NAMES.get(name, name))
        if shape is None:
            continue
        tp, batch, length = (int(numbers[key][row]) for key in ("tp", "batch", "seq_len"))
        composer = composers.setdefault((name, tp), Composer(device, shape, tp))
        phase = words["phase"][row]
        linear, attention, reduced = _predicted(device, composer, shape, tp, batch, length, phase == "prefill")
        yield "linear layers and head", phase, linear, numbers["linear"][row]
        yield "attention", phase, attention, numbers["attention"][row]
        if tp > 1:
            yield "all-reduces", phase, reduced, numbers["allreduce"][row]


def _predicted(
    device: Device, composer: Composer, shape: ModelShape, tp: int, batch: int, length: int, prefill: bool
) -> tuple[float, float, float]:
    tokens = batch * length if prefill else batch
    linear = shape.layers * composer.linear_s(tokens) + device.gemm.at(batch, shape.vocabulary / tp, shape.hidden)
    if prefill:
        attention = composer.prefill_attention_s(tokens, (length + 1) / 2)
    else:
        attention = composer.decode_attention_s(batch, length)
    return linear, shape.layers * attention, shape.layers * composer.all_reduce_s(tokens)


def whole_iterations(folder: Path) -> list[Error]:
    """Composed A100 steps against measured iterations of another engine on one A800 (the same chip)."""
    table = read_table(folder / "measured_loongserve_a800.csv.gz", ITERATIONS)
    table = table.where((table.numbers["sp"] == 1) & (table.numbers["tp"] == 1))
    model = Composer(find_device("a100"), SHAPES["lwm-text-1m-7b"]).step_model()
    errors = []
    for row, length in enumerate(table.numbers["input_len"]):
        prefill, decode = Batch(), Batch()
        prefill.add_prefill(int(length))
        decode.add_decode(int(length) + 1)
        for name, batch in (("prefill", prefill), ("decode", decode)):
            measured = table.numbers[f"{name}_latency"][row : row + 1]
            errors.append(error_of(name, f"length {length:.0f}", np.array([model.step_s(batch)]), measured))
    return errors


def fit_strategies(folder: Path) -> dict[tuple[int, int], PrefillModel]:
    """LoongServe's equation 7 per (sequence, tensor) parallelism that was measured at three points or more."""
    table = read_table(folder / "measured_loongserve_a800.csv.gz", ITERATIONS)
    return {key: PrefillModel(*map(float, relative_fit(*_lengths(rows)))) for key, rows in _strategies(table)}


def strategy_errors(folder: Path) -> list[Error]:
    """Of each point of each strategy, predicted by a fit to the others."""
    table = read_table(folder / "measured_loongserve_a800.csv.gz", ITERATIONS)
    errors = []
    for (sp, tp), rows in _strategies(table):
        features, seconds = _lengths(rows)
        each = np.arange(len(seconds))
        predicted = [
            float(features[i] @ relative_fit(features[each != i], seconds[each != i])) for i in range(len(seconds))
        ]
        errors.append(error_of("prefill", f"sp {sp}, tp {tp}", np.array(predicted), seconds))
        errors.append(
            error_of("prefill, seen", f"sp {sp}, tp {tp}", features @ relative_fit(features, seconds), seconds)
        )
    return errors


def _strategies(table: Table) -> Iterator[tuple[tuple[int, int], Table]]:
    pairs = sorted({(int(sp), int(tp)) for sp, tp in table.columns("sp", "tp")})
    for sp, tp in pairs:
        rows = table.where((table.numbers["sp"] == sp) & (table.numbers["tp"] == tp))
        if len(rows) >= 5:
            yield (sp, tp), rows


def _lengths(rows: Table) -> tuple[np.ndarray, np.ndarray]:
    """Features 1, sum of lengths, sum of their squares; seconds of a prefill."""
    batch, length = rows.numbers["batch"], rows.numbers["input_len"]
    return np.stack([np.ones_like(batch), batch * length, batch * length**2], axis=1), rows.numbers["prefill_latency"]
