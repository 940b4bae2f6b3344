"""How many tokens of a layer's linear work are one piece, from the time that it takes here.

Pieces have few sizes, all multiples of a deterministic tile, and begin at multiples of their size: in deterministic
mode a row's bits do not depend on them, for it is computed in a tile of its own shape anyway. In fast mode the product
of a batch of `LEAST` rows or more had the same bits in each row as that of a longer one wherever it was tried (bf16 and
fp32); no library promises that, and the sizes settle after a few pieces, so results do not follow the machine's load.
"""

from collections.abc import Callable
from enum import IntEnum

LEAST = 512
"""Smaller pieces read the weights too often: that costs more than the safepoints between them are worth."""
MOST = 1 << 16
GROW_BELOW = 0.8
"""A size is doubled if the double would take less than this share of the bound: it does not swing to and fro."""
WEIGHT = 0.2
"""Of the newest measurement in the average."""


class Linear(IntEnum):
    """The two stretches of linear work in a layer, before and after its attention."""

    PROJECT = 0
    FINISH = 1


class PieceSizes:
    """Owns the measured seconds per token and layer of each stretch, and the sizes that follow from it.

    `response_s`: a piece should take at most so long (0: every piece has `least` tokens). `clock` tells seconds.
    """

    def __init__(self, response_s: float, clock: Callable[[], float], least: int = LEAST) -> None:
        self._response_s = response_s
        self._clock = clock
        self._least = least
        self._sizes = [least, least]
        self._token_s: list[float | None] = [None, None]
        self._began_s = 0.0

    def size(self, stretch: Linear) -> int:
        """Tokens of the next piece."""
        return self._sizes[stretch]

    def begin(self, tokens: int) -> None:
        """A piece of so many tokens begins now. What takes long in a small one is reading the weights."""
        if tokens >= self._least:
            self._began_s = self._clock()

    def end(self, stretch: Linear, tokens: int) -> None:
        """The piece that began last is done."""
        if tokens < self._least:
            return
        took_s = self._clock() - self._began_s
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
