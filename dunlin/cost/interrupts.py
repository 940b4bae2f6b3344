"""When an engine answers an interrupt: at the next safepoint of the running step, and a little later."""

from bisect import bisect_left
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
    `answer_s`: from the safepoint to the answer, in which the step stands still.
    """

    answer_s: float = 0.0
    layer_safepoints: int = 1
    response_s: float = 0.005
    measured: tuple[LayerPieces, ...] = ()

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

    def response_at(self, after_s: float, step_s: float, layers: int) -> float:
        """Seconds from an interrupt, `after_s` after the step began, to its answer."""
        runs, starts = self.cut(step_s / layers, 1 << 16)
        run_s = step_s / layers / runs
        at = after_s % run_s / run_s
        number = bisect_left(starts, at)
        return ((starts[number] if number < len(starts) else 1.0) - at) * run_s + self.answer_s

    def _even(self, layer_s: float, most: int) -> int:
        pieces = self.layer_safepoints
        while pieces < most and layer_s / pieces > self.response_s * (1.0 + _SLACK):
            pieces *= 2
        return pieces


@lru_cache(maxsize=1024)
def _nearest(measured: tuple[LayerPieces, ...], layer_s: float) -> LayerPieces:
    """By ratio."""
    return min(measured, key=lambda each: abs(log(max(layer_s, _SLACK) / each.layer_s)))
