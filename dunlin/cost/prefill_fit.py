"""Least squares of LoongServe's equation 7: prices of a prefill that are never negative, by relative error. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import fsum

from dunlin.cost.strategies import PrefillModel

_FEATURES = 3


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """A measured prefill: Σ length, Σ length², and its seconds, more than 0."""

    tokens: int
    squares: int
    seconds: float


def fit_prefill(points: Sequence[PrefillPoint]) -> PrefillModel:
    """The prices with the least mean square of relative errors. With fewer points than prices some prices are 0.

    Raises ValueError without a point.
    """
    if not points:
        raise ValueError("no prefill was measured")
    rows = [(1.0 / each.seconds, each.tokens / each.seconds, each.squares / each.seconds) for each in points]
    _, (fixed_s, token_s, square_s) = min(_candidates(rows))
    tokens = [each.tokens for each in points]
    return PrefillModel(fixed_s, token_s, square_s, min(tokens), max(tokens), len(points))


def _candidates(rows: Sequence[Sequence[float]]) -> Iterator[tuple[float, list[float]]]:
    """Prices of every choice of features whose least squares are not negative, with the sum of squared errors."""
    for count in range(1, min(_FEATURES, len(rows)) + 1):
        for chosen in combinations(range(_FEATURES), count):
            prices = [0.0] * _FEATURES
            for feature, price in zip(chosen, _least_squares(rows, chosen), strict=True):
                prices[feature] = price
            if min(prices) >= 0.0:
                yield fsum((1.0 - _predicted(row, prices)) ** 2 for row in rows), prices


def _predicted(row: Sequence[float], prices: Sequence[float]) -> float:
    return fsum(value * price for value, price in zip(row, prices, strict=True))


def _least_squares(rows: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[float]:
    """Prices of the chosen features with which rows come nearest to 1; -1 where features cannot be told apart."""
    # Scaled to the same length, so that what can be told apart is seen by the pivots.
    scale = [fsum(row[one] ** 2 for row in rows) ** 0.5 or 1.0 for one in chosen]
    matrix = [
        [
            *(fsum(row[a] * row[b] for row in rows) / (scale[i] * scale[j]) for j, b in enumerate(chosen)),
            fsum(row[a] for row in rows) / scale[i],
        ]
        for i, a in enumerate(chosen)
    ]
    for column in range(len(chosen)):
        pivot = max(range(column, len(chosen)), key=lambda one: abs(matrix[one][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        if abs(matrix[column][column]) < 1e-12:
            return [-1.0] * len(chosen)
        for other in range(len(chosen)):
            if other != column:
                factor = matrix[other][column] / matrix[column][column]
                matrix[other] = [a - factor * b for a, b in zip(matrix[other], matrix[column], strict=True)]
    return [matrix[one][-1] / matrix[one][one] / scale[one] for one in range(len(chosen))]
