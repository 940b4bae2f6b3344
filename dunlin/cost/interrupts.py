"""When an engine answers an interrupt: at the next safepoint of the running step, and a little later."""

from dataclasses import dataclass

_SLACK = 1e-9
"""Relative rounding of times that counts as none."""


@dataclass(frozen=True, slots=True)
class InterruptTimes:
    """`layer_safepoints` are in each layer at least, and as many more that two are at most `response_s` apart; the
    number is a power of two. `answer_s`: from the safepoint to the answer, in which the step stands still.
    """

    answer_s: float = 0.0
    layer_safepoints: int = 1
    response_s: float = 0.005

    def pieces(self, layer_s: float, most: int) -> int:
        """Pieces of a layer that takes so many seconds; at most `most`, a power of two."""
        pieces = self.layer_safepoints
        while pieces < most and layer_s / pieces > self.response_s * (1.0 + _SLACK):
            pieces *= 2
        return pieces

    def response_at(self, after_s: float, step_s: float, layers: int) -> float:
        """Seconds from an interrupt, `after_s` after the step began, to its answer."""
        piece_s = step_s / layers / self.pieces(step_s / layers, 1 << 16)
        return -after_s % piece_s + self.answer_s
