"""How much of a layer's linear work is one piece, from the time that it takes here.

Rows of a batch are cut into blocks, of few sizes; a block that lasts too long is cut by columns of its products. In
deterministic mode blocks are small and their columns whole: a row's bits do not depend on its block, for it is computed
in a tile of its own shape anyway. In fast mode the product of `LEAST_ROWS` rows or more had the same bits in each row
as that of more, and in each column as that of all (bf16 and fp32), wherever it was tried; no library promises that.
"""

from collections.abc import Callable
from enum import IntEnum

LEAST_ROWS = 512
"""Smaller blocks read and prepare the weights too often: it costs more than the safepoints between them are worth."""
LEAST_COLUMNS = 768
"""Fewer columns read the rows too often."""
MOST = 1 << 16
GROW_BELOW = 0.8
"""A block is doubled if the double would take less than this share of the bound: it does not swing to and fro."""
WEIGHT = 0.2
"""Of the newest measurement in the average."""


class Linear(IntEnum):
    """The two stretches of linear work in a layer, before and after its attention."""

    PROJECT = 0
    FINISH = 1


class PieceSizes:
    """Owns the measured seconds per token and layer of each stretch, and the sizes that follow from it.

    `response_s`: a piece should take at most so long (0: every piece is the least). `least_rows` of a block;
    `least_columns` of a piece of it, None: blocks are not cut. `clock` tells seconds of computing.
    """

    def __init__(
        self,
        response_s: float,
        clock: Callable[[], float],
        least_rows: int = LEAST_ROWS,
        least_columns: int | None = None,
    ) -> None:
        self.clock = clock
        self.least_columns = least_columns
        self._response_s = response_s
        self._least = least_rows
        self._sizes = [least_rows, least_rows]
        self._token_s: list[float | None] = [None, None]

    def rows(self, stretch: Linear) -> int:
        """Tokens of the next block."""
        return self._sizes[stretch]

    def share(self, stretch: Linear, tokens: int) -> float:
        """The share of a block of so many tokens that is one piece; 1: the whole block is."""
        if self.least_columns is None:
            return 1.0
        token_s = self._token_s[stretch]
        if token_s is None:  # not measured yet
            return 0.0
        return min(self._response_s / max(tokens * token_s, 1e-9), 1.0)

    def learn(self, stretch: Linear, tokens: int, took_s: float) -> None:
        """A block of so many tokens took so long. What takes long in a small one is reading the weights."""
        if tokens < self._least:
            return
        before = self._token_s[stretch]
        token_s = took_s / tokens if before is None else before + WEIGHT * (took_s / tokens - before)
        self._token_s[stretch] = token_s
        self._sizes[stretch] = self._fitted(self._sizes[stretch], token_s)

    def _fitted(self, size: int, token_s: float) -> int:
        if size > self._least and size * token_s > self._response_s:
            return size // 2
        if size < MOST and 2 * size * token_s < GROW_BELOW * self._response_s:
            return size * 2
        return size
