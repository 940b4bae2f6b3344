"""A smooth function of a few counts, kept as the logarithms of its values on a coarse grid of logarithms.

Between grid points the logarithm is interpolated linearly along each axis. Beyond the grid physics decides and not the
last slope: a kernel that reaches a certain part of the hardware's peak at the edge reaches the same part of it with
more work, and takes no less than at the edge with less. Pure: fitting is `fit`'s.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2, prod
from typing import Any


@dataclass(frozen=True, slots=True)
class Surface:
    """`knots[a]` are the log2 coordinates of axis a, rising; `values` the log2 values, last axis fastest."""

    axes: tuple[str, ...]
    knots: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.knots) or len(self.values) != prod(len(axis) for axis in self.knots):
            raise ValueError(f"a surface over {self.axes} needs one list of knots per axis and a value per grid point")
        for name, axis in zip(self.axes, self.knots, strict=True):
            if not axis or any(b <= a for a, b in pairwise(axis)):
                raise ValueError(f"the knots of axis {name!r} must rise strictly")

    def at(self, *coordinates: float) -> float:
        """The value at positive coordinates: beyond the grid in proportion to each coordinate, below it the edge's.

        Raises ValueError on another number of coordinates, or one that is not > 0.
        """
        if len(coordinates) != len(self.axes) or min(coordinates) <= 0:
            raise ValueError(f"needs positive {', '.join(self.axes)}: {coordinates}")
        cells = [(0, 1.0)]
        total = 0.0
        for axis, coordinate in zip(self.knots, coordinates, strict=True):
            x = log2(coordinate)
            if x > axis[-1]:
                total += x - axis[-1]
            cells = [
                (index * len(axis) + knot, weight * part)
                for index, weight in cells
                for knot, part in linear_weights(axis, min(max(x, axis[0]), axis[-1]))
            ]
        for index, weight in cells:
            total += weight * self.values[index]
        return float(2.0**total)

    def last_knot(self, axis: str) -> float:
        """The greatest coordinate of the grid along that axis. Raises ValueError on an unknown axis."""
        return float(2.0 ** self.knots[self.axes.index(axis)][-1])

    def as_json(self) -> dict[str, Any]:
        """The surface as JSON, which `from_json` reads back; values to five digits (0.0007 % of a time)."""
        return {"axes": self.axes, "knots": self.knots, "log2_values": [round(value, 5) for value in self.values]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Surface":
        """A surface out of JSON. Raises KeyError on a missing part, ValueError on parts that do not fit."""
        return cls(tuple(data["axes"]), tuple(map(tuple, data["knots"])), tuple(data["log2_values"]))


def linear_weights(axis: Sequence[float], x: float) -> list[tuple[int, float]]:
    """The knots next to x and their weights, which sum to 1; beyond the ends the last piece goes on."""
    if len(axis) == 1:
        return [(0, 1.0)]
    left = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    part = (x - axis[left]) / (axis[left + 1] - axis[left])
    return [(left, 1.0 - part), (left + 1, part)]
