"""Fits: surfaces and linear models to measured points, always on relative error (weights 1 / time). Needs numpy.

Knows points and models. Does not know tables, devices or the store.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dunlin.cost.surface import Surface

Array = NDArray[np.float64]
ROUNDS = 4
"""Rounds of lowering the weight of points that stay far off."""


def fit_surface(
    axes: Sequence[str],
    knots: Sequence[Sequence[float]],
    points: Array,
    seconds: Array,
    smoothness: float = 0.005,
    certainty: Array | None = None,
) -> Surface:
    """The surface over log2 `knots` nearest to `seconds` (n) at `points` (n × axes), in least squares of logarithms.

    `smoothness` weighs the second differences along each axis against the points: grid cells without points continue
    their neighbours. Points that stay far off count less (as in `relative_fit`), and each by its `certainty` besides
    (see `clock_tick_weight`). Raises ValueError where a point or a time is not positive.
    """
    if not (points > 0).all() or not (seconds > 0).all():
        raise ValueError("points and times must be positive to have logarithms")
    shape = [len(axis) for axis in knots]
    logs, beyond = _within(knots, np.log2(points))
    target = np.log2(seconds) - beyond
    smooth = smoothness * len(points) / np.prod(shape) * _roughness(shape) + 1e-9 * np.eye(int(np.prod(shape)))
    sure = np.ones(len(points)) if certainty is None else certainty
    weights = sure
    for _ in range(ROUNDS):
        normal, right = smooth.copy(), np.zeros(len(smooth))
        for chunk in range(0, len(points), 4096):
            rows = _design(knots, logs[chunk : chunk + 4096])
            weighted = rows.T * weights[chunk : chunk + 4096]
            normal += weighted @ rows
            right += weighted @ target[chunk : chunk + 4096]
        values = np.linalg.solve(normal, right)
        surface = Surface(tuple(axes), tuple(tuple(map(float, axis)) for axis in knots), tuple(map(float, values)))
        weights = sure * _trust(np.abs(np.log2(surface_values(surface, points)) - beyond - target))
    return surface


def clock_tick_weight(seconds: Array, tick_s: float, spread: float = 0.05) -> Array:
    """The weight of a time read from a clock of `tick_s`: 1 where the tick is small beside a kernel's own `spread`,
    less where it is not. (A tick's error is uniform: its deviation is tick / √12.)
    """
    ticks: Array = tick_s / (np.sqrt(12.0) * seconds)
    return 1.0 / (1.0 + (ticks / spread) ** 2)


def fit_piecewise(axis: str, starts: Sequence[float], last: float, counts: Array, seconds: Array) -> Surface:
    """A curve over one count in stages, as where a library changes its algorithm: each begins at one of `starts`, the
    first of which is the least count meant, and lasts to the next, the last one to `last`.

    In a stage the time is α + β·√count + γ·count, none negative (a start-up, a part that pipelining hides in part, and
    a bandwidth). Between stages it may jump. Raises ValueError where a stage has no point.
    """
    knots: list[float] = []
    values: list[float] = []
    ends = (*starts[1:], last)
    for start, end in zip(starts, ends, strict=True):
        within = (counts >= start) & ((counts < end) | (end == last))
        if not within.any():
            raise ValueError(f"no point between {start:,.0f} and {end:,.0f} {axis}")
        prices = relative_fit(_stage_features(counts[within]), seconds[within])
        stops = _octaves(start, end if end == last else end * (1 - _JUMP))
        knots += map(float, np.log2(stops))
        values += map(float, np.log2(_stage_features(stops) @ prices))
    return Surface((axis,), (tuple(knots),), tuple(values))


_JUMP = 1e-6
"""The part of a count over which one stage gives way to the next: a curve has one value at each count."""


def _stage_features(counts: Array) -> Array:
    return np.stack([np.ones_like(counts), np.sqrt(counts), counts], axis=1)


def _octaves(start: float, end: float) -> Array:
    """Twice as much each time, so that lines between logarithms stay within 1 % of the curve; and the end."""
    inner = 2.0 ** np.arange(np.ceil(np.log2(start) + 0.2), np.log2(end) - 0.2)
    return np.unique(np.concatenate([[start], inner, [end]]))


def _trust(residual: Array) -> Array:
    """Huber's weights, in units of the residuals' own spread: some disturbed measurements must not bend a model."""
    spread = max(3.0 * float(np.median(residual)), 1e-6)
    weights: Array = np.minimum(1.0, spread / np.maximum(residual, 1e-12))
    return weights


def _within(knots: Sequence[Sequence[float]], logs: Array) -> tuple[Array, Array]:
    """The points moved to the grid's edge where they lie outside, and how far they lay beyond it in all."""
    inside = np.clip(logs, [axis[0] for axis in knots], [axis[-1] for axis in knots])
    beyond: Array = np.maximum(logs - inside, 0.0).sum(axis=1)
    return inside, beyond


def _design(knots: Sequence[Sequence[float]], logs: Array) -> Array:
    """The interpolation matrix: row i holds the weight of each grid point in point i."""
    rows = np.ones((len(logs), 1))
    for axis, x in zip(knots, logs.T, strict=True):
        rows = np.einsum("pi,pj->pij", rows, _hats(np.asarray(axis, float), x)).reshape(len(logs), -1)
    return rows


def _hats(axis: Array, x: Array) -> Array:
    """As `surface.hats`, for many x: (n × knots) weights."""
    weights = np.zeros((len(x), len(axis)))
    if len(axis) == 1:
        return weights + 1.0
    left = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
    part = (x - axis[left]) / (axis[left + 1] - axis[left])
    weights[np.arange(len(x)), left] = 1.0 - part
    weights[np.arange(len(x)), left + 1] = part
    return weights


def _roughness(shape: Sequence[int]) -> Array:
    """The quadratic form of all second differences on a grid."""
    size = int(np.prod(shape))
    grid = np.arange(size).reshape(shape)
    total = np.zeros((size, size))
    for axis, length in enumerate(shape):
        if length < 3:
            continue
        low, middle, high = (np.take(grid, range(i, length - 2 + i), axis).ravel() for i in range(3))
        rows = np.zeros((len(low), size))
        each = np.arange(len(low))
        rows[each, low], rows[each, middle], rows[each, high] = 1.0, -2.0, 1.0
        total += rows.T @ rows
    return total


def surface_values(surface: Surface, points: Array) -> Array:
    """`surface.at` of many points (n × axes)."""
    logs, beyond = _within(surface.knots, np.log2(points))
    values: Array = 2.0 ** (_design(surface.knots, logs) @ np.array(surface.values) + beyond)
    return values


def relative_fit(features: Array, seconds: Array) -> Array:
    """Coefficients ≥ 0 (one per feature) that predict `seconds` = features · coefficients.

    Least squares of relative errors (weights 1 / time); points that stay far off count less.
    """
    relative = features / seconds[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    weights = np.ones(len(seconds))
    coefficients = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        coefficients = non_negative(relative / scale * root[:, None], root)
        weights = _trust(np.abs(relative / scale @ coefficients - 1.0))
    found: Array = coefficients / scale
    return found


def non_negative(matrix: Array, right: Array) -> Array:
    """The x ≥ 0 with the least |matrix · x − right|: Lawson and Hanson's active sets."""
    count = matrix.shape[1]
    x, active, useless = np.zeros(count), np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    tolerance = 1e-9 * float(np.abs(matrix.T @ right).max() or 1.0)
    for _ in range(10 * count):
        gradient = matrix.T @ (right - matrix @ x)
        gradient[active | useless] = -np.inf
        if gradient.max() <= tolerance:
            break
        chosen = int(gradient.argmax())
        active[chosen] = True
        x = _feasible(matrix, right, x, active)
        # Columns that say the same as others can be let go of at once; they must not be tried for ever.
        useless[chosen] = not active[chosen]
        useless &= not active[chosen]
    return x


def _feasible(matrix: Array, right: Array, x: Array, active: NDArray[np.bool_]) -> Array:
    """Solve over the active columns, letting go of those that would turn negative, one at a time."""
    while active.any():
        trial = np.zeros_like(x)
        trial[active] = np.linalg.lstsq(matrix[:, active], right, rcond=None)[0]
        falling = active & (trial <= 0)
        if not falling.any():
            return trial
        step = (x[falling] / (x[falling] - trial[falling] + 1e-300)).min()
        x = x + step * (trial - x)
        active &= ~(falling & (x <= 1e-12 * max(1.0, float(np.abs(x).max()))))
        x[~active] = 0.0
    return x
