"""Measures an engine and fits it: the points, the timing, and how far it is from points that the fit did not see.

Needs numpy and a live engine (`probe`). What is predicted of a step is its whole turn: the engine's time in it and what
passes between it and the next one, when the next one is queued already.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from cli.profiling.engine_probe import EngineProbe
from cli.profiling.engine_process import ProbeHostTier
from cli.profiling.fitting.fitted_parts import FitError, fit_error
from cli.profiling.fitting.regression import Array, relative_fit
from cli.profiling.interrupt_fit import QUICK_PLAN, USUAL_PLAN, measure_interrupts
from cli.profiling.service_trace import service_steps
from cli.profiling.trial_plan import QUICK_SIZES, TrialSizes, copy_lengths, step_trials
from cli.profiling.trials import ProbedStep, StepTrial, lower_quartile
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import UNSTEADINESS_PIECE_S, BatchCounts, PiecewiseCurve, StepModel, StepTimes
from dunlin.cost.profile_quality import ProfileQuality
from dunlin.cost.store import StepPoint, TransferPoint
from dunlin.messages.types import TransferKind

TOKEN_KNOTS = (1, 2, 3, 4, 5, 6, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
ROW_KNOTS = (0, 1, 4, 16, 64, 256)
FOLDS = 5
WARM_UP_TRIALS = 10
"""Trials that are not counted: clocks rise and kernels are made meanwhile."""
_MOVE_ROUNDS = 20
_TOUCHED_TOKENS = 4096
"""Tokens per step when the slab is read before the measurement."""


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """The result of a measurement. `errors` are of points left out of the fit, a fifth at a time."""

    timing: EngineTiming
    steps: list[StepPoint]
    moves: list[TransferPoint]
    errors: list[FitError]


def measure_profile(
    probe: EngineProbe, sizes: TrialSizes, repeats: int, passes: int, report: Callable[[int, int], None]
) -> MeasuredProfile:
    """Measure all trials `passes` times over and fit. `report(done, total)` after each. Raises ProbeError."""
    ready = probe.ready
    todo = step_trials(sizes, ready.slots, ready.max_positions, repeats)
    if probe.is_on_cpu:  # a GPU's memory costs the same the first time
        touch_kv_cache(probe)
    for trial in todo[:WARM_UP_TRIALS]:
        probe.measure_step(trial)
    turns: list[list[ProbedStep]] = [[] for _ in todo]
    for number in range(passes * len(todo)):
        turns[number % len(todo)] += probe.measure_step(todo[number % len(todo)])
        report(number + 1, passes * len(todo))
    steps = [step_point(trial, seen) for trial, seen in zip(todo, turns, strict=True)]
    served = measure_trace(probe, sizes.beats)
    moves = _measure_moves(probe)
    interrupts = measure_interrupts(probe, QUICK_PLAN if sizes == QUICK_SIZES else USUAL_PLAN)
    steps += served
    step = fit_steps(steps)
    unsteady = step_unsteadiness(step, served)
    sizes_of = ready.slots, ready.kv_bytes_per_token
    of_steps, of_moves = step_errors(steps), transfer_errors(moves)
    quality = ProfileQuality(sizes == QUICK_SIZES, passes, _means(of_steps), _means(of_moves))
    layers = len(ready.layers)
    timing = EngineTiming(
        step,
        fit_transfers(moves),
        probe.load_s,
        *sizes_of,
        unsteady,
        layers=layers,
        quality=quality,
        interrupts=interrupts,
    )
    return MeasuredProfile(timing, steps, moves, [*of_steps, *of_moves])


def _means(errors: Sequence[FitError]) -> tuple[tuple[str, float], ...]:
    return tuple((error.regime, round(error.mean, 4)) for error in errors)


def touch_kv_cache(probe: EngineProbe) -> None:
    """Have the engine read all of its slab, as after its first minutes of service: the first touch of a page costs
    more than what is computed from it. Raises ProbeError.
    """
    slots = probe.ready.slots
    piece = min(_TOUCHED_TOKENS, slots)
    with closing(ProbeHostTier(piece * probe.ready.kv_bytes_per_token)) as tier:
        probe.map_host_tier(tier)
        for slot in range(0, slots, piece):
            probe.copy_to_host(slot, min(piece, slots - slot))


def measure_trace(probe: EngineProbe, count: int, seed: int = 0) -> list[StepPoint]:
    """`count` steps as they follow each other in service, in their order."""
    todo = list(service_steps(count, probe.ready.max_positions, seed=seed))
    turns = probe.run_trace(todo)
    pairs = zip(todo, turns, strict=True)
    return [StepPoint("service", beat.batch(), turn.compute_s, turn.gap_s) for beat, turn in pairs]


def step_unsteadiness(step: StepTimes, served: Sequence[StepPoint]) -> tuple[float, ...]:
    """How many times as long as predicted each piece of predicted time took, in order: see `EngineTiming`. Pieces are
    cut through steps: what a late token takes from the next one's interval is kept, however short steps are.
    """
    predicted_s = np.cumsum([0.0, *(step.step_s(point.batch) for point in served)])
    taken_s = np.cumsum([0.0, *map(step_interval_s, served)])
    ends_s = np.arange(int(predicted_s[-1] / UNSTEADINESS_PIECE_S) + 1) * UNSTEADINESS_PIECE_S
    return tuple(map(float, np.diff(np.interp(ends_s, predicted_s, taken_s)) / UNSTEADINESS_PIECE_S))


def step_point(trial: StepTrial, turns: Sequence[ProbedStep]) -> StepPoint:
    """The usual times of a trial's steps."""
    compute, gaps = (lower_quartile([getattr(turn, name) for turn in turns]) for name in ("compute_s", "gap_s"))
    return StepPoint(trial.regime, trial.batch(), compute, gaps)


def _measure_moves(probe: EngineProbe) -> list[TransferPoint]:
    lengths = copy_lengths(probe.ready.slots)
    with closing(ProbeHostTier(max(lengths) * probe.ready.kv_bytes_per_token)) as tier:
        probe.map_host_tier(tier)
        times: dict[tuple[TransferKind, int], list[float]] = {}
        order = lengths * _MOVE_ROUNDS
        random.Random(0).shuffle(order)  # a copy finds the caches as one of another length left them
        for tokens in order:
            for kind, seconds in probe.move_times(tokens, 1).items():
                times.setdefault((kind, tokens * probe.ready.kv_bytes_per_token), []).extend(seconds)
    return [TransferPoint(kind, length, lower_quartile(seconds)) for (kind, length), seconds in times.items()]


def step_interval_s(point: StepPoint) -> float:
    """Seconds from the end of the step before to this one's."""
    return point.seconds + point.gap_s


def fit_steps(points: Sequence[StepPoint]) -> StepModel:
    """A `StepModel` whose every price is ≥ 0, so that more work never takes less."""
    seconds = np.array([step_interval_s(point) for point in points])
    most = max(point.batch.prefill_tokens + point.batch.decode_rows for point in points)
    knots = tuple(float(knot) for knot in TOKEN_KNOTS if knot <= 2 * most)
    prices = relative_fit(_features([point.batch for point in points], knots), seconds)
    tokens, rows, rest = np.split(prices, [len(knots) - 1, len(knots) - 1 + len(ROW_KNOTS) - 1])
    fixed, product, prefix, prefill_row, decode_row, context, sampled_row = map(float, rest)
    return StepModel(
        tokens=_risen(knots, tokens),
        rows=_risen(tuple(map(float, ROW_KNOTS)), rows),
        fixed_s=fixed,
        product_s=product,
        prefix_s=prefix,
        prefill_row_s=prefill_row,
        decode_row_s=decode_row,
        decode_context_s=context,
        sampled_row_s=sampled_row,
    )


def _features(batches: Sequence[BatchCounts], knots: Sequence[float]) -> Array:
    """The feature matrix of batches, in the order in which `fit_steps` reads the prices."""
    columns = []
    for batch in batches:
        new, prefix = batch.prefill_tokens, batch.prefix_products
        rows = batch.prefill_rows + batch.decode_rows
        pairs = prefix + 0.5 * (batch.self_products + new)
        rest = [1.0, pairs, prefix, batch.prefill_rows, batch.decode_rows, batch.decode_context, batch.sampled_rows]
        columns.append([*_climbs(knots, new + batch.decode_rows), *_climbs(ROW_KNOTS, rows), *rest])
    return np.array(columns, dtype=float)


def _climbs(knots: Sequence[float], x: float) -> list[float]:
    """The length of each piece between knots that lies below x; the last piece goes on beyond its end."""
    ends = [*knots[1:-1], float("inf")]
    return [max(0.0, min(x, end) - start) for start, end in zip(knots, ends, strict=False)]


def _risen(knots: tuple[float, ...], slopes: Array) -> PiecewiseCurve:
    heights = [0.0]
    for start, end, slope in zip(knots, knots[1:], slopes, strict=False):
        heights.append(heights[-1] + float(slope) * (end - start))
    return PiecewiseCurve(knots, tuple(heights))


def fit_transfers(points: Sequence[TransferPoint]) -> TransferModels:
    """One model per kind that was measured; other kinds are taken for copies to the host tier."""
    by_kind = {}
    for kind in sorted({point.kind for point in points}):
        chosen = [point for point in points if point.kind is kind]
        sizes, seconds = (
            np.array([getattr(point, name) for point in chosen], float) for name in ("byte_count", "seconds")
        )
        by_kind[kind] = _fit_transfer(sizes, seconds)
    return TransferModels(by_kind.get(TransferKind.SLAB_TO_HOST, TransferModel(1e-3, 1e9)), by_kind)


def _fit_transfer(sizes: Array, seconds: Array) -> TransferModel:
    """Two lines that meet at the measured size that leaves the least error, the second as steep at least."""
    models = [_fit_transfer_beyond(near, sizes, seconds) for near in sorted(set(sizes))[1:-1] or [sizes[0]]]
    return min(models, key=lambda model: _squared_errors(model, sizes, seconds))


def _fit_transfer_beyond(near_bytes: float, sizes: Array, seconds: Array) -> TransferModel:
    far = np.maximum(0.0, sizes - near_bytes)
    fixed, slope, far_slope = map(float, relative_fit(np.stack([np.ones_like(sizes), sizes, far], axis=1), seconds))
    return TransferModel(fixed, 1.0 / max(slope, 1e-15), float(near_bytes), far_slope)


def _squared_errors(model: TransferModel, sizes: Array, seconds: Array) -> float:
    predicted = np.array([model.move_s(int(size)) for size in sizes])
    return float(np.square(predicted / seconds - 1.0).sum())


def step_errors(points: Sequence[StepPoint]) -> list[FitError]:
    """Per regime: every point predicted by a fit to the other four fifths."""
    fold = np.random.default_rng(0).permutation(len(points)) % FOLDS
    predicted = np.zeros(len(points))
    for left_out in range(FOLDS):
        model = fit_steps([point for point, own in zip(points, fold, strict=True) if own != left_out])
        for index in np.flatnonzero(fold == left_out):
            predicted[index] = model.step_s(points[int(index)].batch)
    return _per_group(
        "step", [point.regime for point in points], predicted, np.array([step_interval_s(p) for p in points])
    )


def transfer_errors(points: Sequence[TransferPoint]) -> list[FitError]:
    """Per kind: every point predicted by a fit to the others."""
    predicted = []
    for left_out in points:
        moves = fit_transfers([point for point in points if point is not left_out])
        predicted.append(moves.move_s(left_out.kind, left_out.byte_count))
    names = [point.kind.name.lower() for point in points]
    return _per_group("move", names, np.array(predicted), np.array([point.seconds for point in points]))


def _per_group(part: str, names: Sequence[str], predicted: Array, seconds: Array) -> list[FitError]:
    groups = np.array(names)
    return [
        fit_error(part, str(name), predicted[groups == name], seconds[groups == name]) for name in sorted(set(names))
    ]
