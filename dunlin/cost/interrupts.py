"""When an engine answers an interrupt: at the next safepoint of the running step, and a little later."""

from dataclasses import dataclass
from functools import lru_cache
from math import log

_SLACK = 1e-9
"""Relative rounding of times that counts as none."""
_WHOLE = (0.0,)


@dataclass(frozen=True, slots=True)
class LayerPieces:
    """What an engine cut a layer of `layer_s` seconds into: where each piece begins, as shares of the layer, from 0."""

    layer_s: float
    starts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class InterruptTimes:
    """`measured` are layers of a prompt alone, the shortest first; another layer is cut like the one next to it in
    length, and one much longer than all of them like several. Where nothing was measured, `layer_safepoints` are in
    each layer at least, and as many more that two are `response_s` apart at most; the number is a power of two.
    An answer comes `answer_s` after the safepoint, and `answer_token_s` later for each token of the rows that leave,
    whose hidden states, queries and results are set aside; the step stands still meanwhile.
    """

    answer_s: float = 0.0
    layer_safepoints: int = 1
    response_s: float = 0.005
    measured: tuple[LayerPieces, ...] = ()
    answer_token_s: float = 0.0

    def cut(self, layer_s: float, most: int) -> tuple[int, tuple[float, ...]]:
        """How a layer that takes so many seconds is cut: into equal runs, at most `most`, a power of two; and where the
        pieces of each begin, as shares of the run.
        """
        if not self.measured:
            return self._even(layer_s, most), _WHOLE
        runs, longest_s = 1, self.measured[-1].layer_s
        while runs < most and layer_s > 1.5 * runs * longest_s:
            runs *= 2
        return runs, _nearest(self.measured, layer_s).starts

    def answer_delay_s(self, tokens: int) -> float:
        """Seconds from the safepoint to the answer, if rows of so many tokens leave there."""
        return self.answer_s + self.answer_token_s * tokens

    def _even(self, layer_s: float, most: int) -> int:
        pieces = self.layer_safepoints
        while pieces < most and layer_s / pieces > self.response_s * (1.0 + _SLACK):
            pieces *= 2
        return pieces


@lru_cache(maxsize=1024)
def _nearest(measured: tuple[LayerPieces, ...], layer_s: float) -> LayerPieces:
    """By ratio."""
    return min(measured, key=lambda each: abs(log(max(layer_s, _SLACK) / each.layer_s)))
