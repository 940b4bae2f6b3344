"""A stretch of a layer's linear work for some tokens, cut by columns of its products.

A piece of few rows reads and prepares the weights as a piece of many does, so cutting many rows into few costs much. A
piece of few columns reads and prepares only its own weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

ComputeColumns = Callable[[Tensor, Tensor, slice, Tensor], None]
"""(residual, given, columns, into) -> None: write those columns of the result."""
AfterProduct = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(residual, result) -> (residual, given) of the next product."""
Adapt = Callable[[Tensor, Tensor, Tensor], None]
"""(adapters of the rows, given, result) -> None: add to the result what the rows' adapters do."""
QUANTUM = 32


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a stretch, with `weight` `[columns of the result, inputs]`.

    `after` makes what the next product gets. `part` of the rows is computed, on average. `adapt`: adapters may change
    it; what they add comes with the product's last columns, in one piece.
    """

    weight: Tensor
    compute: ComputeColumns
    after: AfterProduct
    part: float = 1.0
    adapt: Adapt | None = None


class LinearWork:
    """Tokens `[start, stop)` of a batch on their way through the products of a stretch.

    `adapters` `[tokens]` are the numbers of their adapters; None: they have none. `took_s`: what the caller measured of
    it so far; None: not of all of its tokens.
    """

    def __init__(
        self,
        products: Sequence[Product],
        start: int,
        stop: int,
        residual: Tensor,
        given: Tensor,
        adapters: Tensor | None = None,
        at: int = 0,
    ) -> None:
        self.start = start
        self.stop = stop
        self.took_s: float | None = 0.0
        self._products = products
        self._residual = residual
        self._given = given
        self._adapters = adapters
        self._at = at
        self._column = 0
        self._out: Tensor | None = None

    def __repr__(self) -> str:
        return f"[tokens: {self.start} to {self.stop} | product: {self._at} | column: {self._column}]"

    @property
    def done(self) -> bool:
        """Whether `result` is there."""
        return self._at == len(self._products)

    @property
    def result(self) -> Tensor:
        """The last product's result, `[tokens, columns]`, once it is done."""
        return self._given

    @property
    def size_bytes(self) -> int:
        """Of the tensors."""
        return sum(each.nbytes for each in (self._residual, self._given, self._out) if each is not None)

    def advance(self, share: float, least_columns: int) -> None:
        """Compute the next columns of one product: at most `share` of the stretch's multiply-adds, but no fewer than
        `least_columns` unless the product ends.
        """
        product = self._products[self._at]
        count, inputs = product.weight.shape
        total = sum(each.weight.numel() * each.part for each in self._products)
        left = count - self._column
        columns = slice(
            self._column, self._column + even_part(left, share * total / (inputs * product.part), least_columns)
        )
        if self._out is None:
            self._out = self._given.new_empty(self.stop - self.start, count)
        product.compute(self._residual, self._given, columns, self._out[:, columns])
        self._column = columns.stop
        if self._column == count:
            if self._adapters is not None and product.adapt is not None:
                product.adapt(self._adapters, self._given, self._out)
            self._residual, self._given = product.after(self._residual, self._out)
            self._at, self._column, self._out = self._at + 1, 0, None

    def part(self, start: int, stop: int, moved: int = 0) -> "LinearWork":
        """A copy for the tokens `[start, stop)` of its own, which are `moved` further back in another batch."""
        rows = slice(start - self.start, stop - self.start)
        copied = LinearWork(
            self._products,
            start - moved,
            stop - moved,
            self._residual[rows].clone(),
            self._given[rows].clone(),
            None if self._adapters is None else self._adapters[rows],
            self._at,
        )
        copied.took_s = None
        copied._column = self._column
        copied._out = None if self._out is None else self._out[rows].clone()
        return copied

    def without(self, start: int, stop: int) -> "list[LinearWork]":
        """The work for its tokens but those in `[start, stop)`: itself where it has none of these."""
        if stop <= self.start or start >= self.stop:
            return [self]
        rest = ((self.start, start), (stop, self.stop))
        return [self.part(first, last) for first, last in rest if first < last]


def even_part(left: int, most: float, least: int) -> int:
    """The first of as few even parts of `left` columns as have at most `most`, but at least `least` if there are so
    many; rounded up to a vector's width.
    """
    parts = max(min(math.ceil(left / max(most, 1)), left // least), 1)
    return min(math.ceil(left / parts / QUANTUM) * QUANTUM, left)
