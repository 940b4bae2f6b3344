"""Fits a `StepModel` to steps as they are served: running least squares whose prices are never negative. Pure.

Sums of products of a step's counts are all that is kept of it (the normal equations), so memory does not grow. Errors
are relative, and old steps are forgotten. Small and large steps are summed apart and weigh the same, however many more
there are of one kind. Does not know which are large, nor when a fit is good enough to be used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite, sqrt
from operator import mul

from dunlin.cost.models import BatchCounts, PiecewiseCurve, StepModel

TOKEN_KNOTS = (0, 16, 64, 256, 1024)
"""Where the price of a further token of a step may rise; it never falls, so that what was not seen is not cheaper."""
FEATURES = 6 + len(TOKEN_KNOTS)
MEMORY = 1024
"""Steps of a kind after which an older one weighs 1 / e."""
SWEEPS = 64
"""Passes of coordinate descent over all prices in one fit, which begins with the prices of the fit before."""
RIDGE = 1e-6
"""Share of a price's own weight that pulls it to 0: of prices that the same steps pay, none grows without need."""
_MOST_UNIT = 1e6


@dataclass(slots=True)
class StepSums:
    """Sums over the steps of one kind, of which there were `steps`.

    With f the features of a step divided by its seconds, and newer steps weighing more: `products` = Σ f·fᵀ (lower
    triangle, row after row), `targets` = Σ f, `weight` = Σ 1. `unit` is the weight of the next step.
    """

    steps: int = 0
    weight: float = 0.0
    unit: float = 1.0
    products: list[float] = field(default_factory=lambda: [0.0] * (FEATURES * (FEATURES + 1) // 2))
    targets: list[float] = field(default_factory=lambda: [0.0] * FEATURES)

    def add(self, batch: BatchCounts, seconds: float) -> None:
        """Add a step that took so many seconds, more than 0."""
        unit, products, targets = self.unit, self.products, self.targets
        paid = [(index, value / seconds) for index, value in enumerate(features(batch)) if value]
        for place, (index, value) in enumerate(paid):
            weighted = unit * value
            targets[index] += weighted
            row = index * (index + 1) // 2
            for other, factor in paid[: place + 1]:
                products[row + other] += weighted * factor
        self.steps += 1
        self.weight += unit
        self.unit = unit * (1.0 + 1.0 / MEMORY)
        if self.unit > _MOST_UNIT:
            self._rescale()

    def _rescale(self) -> None:
        """Only the proportions of weights count."""
        self.products = [value / self.unit for value in self.products]
        self.targets = [value / self.unit for value in self.targets]
        self.weight, self.unit = self.weight / self.unit, 1.0

    def copy(self) -> "StepSums":
        """Sums of their own with the same content."""
        return StepSums(self.steps, self.weight, self.unit, self.products[:], self.targets[:])

    def check(self) -> None:
        """Raises ValueError on sums that no steps have."""
        lengths = len(self.products) == FEATURES * (FEATURES + 1) // 2 and len(self.targets) == FEATURES
        numbers = [self.weight, self.unit, *self.products, *self.targets]
        are_numbers = all(isfinite(value) and value >= 0 for value in numbers) and self.unit > 0
        if not lengths or not are_numbers or self.steps < 0 or (self.steps > 0) != (self.weight > 0):
            raise ValueError("the sums of learnt steps are damaged, or of another version")


@dataclass(frozen=True, slots=True)
class LearntSteps:
    """What an instance has learnt of its engine's steps; the next process of such an engine goes on from it.

    `small`, `large`: the sums of steps by their tokens; `with_decodes` of them all had decode rows. `errors`: the
    running means of the relative errors of predictions, of steps with prompts and of decode rows alone, each made
    before its step was summed; `predicted`: how many of each there were.
    """

    small: StepSums
    large: StepSums
    with_decodes: int = 0
    errors: tuple[float, float] = (0.0, 0.0)
    predicted: tuple[int, int] = (0, 0)


def features(batch: BatchCounts) -> list[float]:
    """What a step pays for, in the order of its prices: see `model_of`."""
    new = batch.prefill_tokens
    tokens = new + batch.decode_rows
    pairs = batch.prefix_products + 0.5 * (batch.self_products + new)
    return [
        1.0,
        batch.prefill_rows,
        batch.decode_rows,
        batch.decode_context,
        pairs,
        batch.prefix_products,
        *[tokens - knot if tokens > knot else 0.0 for knot in TOKEN_KNOTS],
    ]


def fit_prices(kinds: Sequence[StepSums], start: Sequence[float] = ()) -> tuple[float, ...]:
    """The prices ≥ 0 with the least mean square of relative errors over the kinds, by coordinate descent from `start`.

    The same sums and start give the same prices. A feature that no step paid has the price 0.
    """
    seen = [sums for sums in kinds if sums.steps]
    order = range(FEATURES)
    matrix = [[fsum(_product(sums, row, column) for sums in seen) for column in order] for row in order]
    targets = [fsum(sums.targets[row] / sums.weight for sums in seen) for row in order]
    scale = [sqrt(matrix[row][row]) or 1.0 for row in order]
    for row, values in enumerate(matrix):
        matrix[row] = [value / (scale[row] * other) for value, other in zip(values, scale, strict=True)]
    goals = [target / own for target, own in zip(targets, scale, strict=True)]
    prices = list(map(mul, start, scale)) if start else [0.0] * FEATURES
    paid = [row for row in order if matrix[row][row] > 0]
    for _ in range(SWEEPS):
        for row in paid:
            rest = goals[row] - fsum(map(mul, matrix[row], prices)) + prices[row]
            prices[row] = rest / (1.0 + RIDGE) if rest > 0 else 0.0
    return tuple(prices[row] / scale[row] if row in paid else 0.0 for row in order)


def _product(sums: StepSums, row: int, column: int) -> float:
    high, low = max(row, column), min(row, column)
    return sums.products[high * (high + 1) // 2 + low] / sums.weight


def model_of(prices: Sequence[float]) -> StepModel:
    """The model with these prices, as `fit_prices` gives them: of a step, a prompt's row, a decode row, a token of its
    context, a pair of a new token and one before it, a pair with a prefix besides, and a token, more from each knot on.
    """
    fixed, prefill_row, decode_row, context, pair, prefix, *steeper = prices
    knots = [*map(float, TOKEN_KNOTS), 2.0 * TOKEN_KNOTS[-1]]  # the last piece goes on beyond its end
    heights, slope = [0.0], 0.0
    for more, low, high in zip(steeper, knots, knots[1:], strict=False):
        slope += more
        heights.append(heights[-1] + slope * (high - low))
    return StepModel(
        tokens=PiecewiseCurve(tuple(knots), tuple(heights)),
        fixed_s=fixed,
        product_s=pair,
        prefix_s=prefix,
        prefill_row_s=prefill_row,
        decode_row_s=decode_row,
        decode_context_s=context,
    )
