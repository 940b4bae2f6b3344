"""When an engine answers an interrupt: at the next safepoint of the running step, and a little later."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

RUN = 4
"""Pieces in a run, whose lengths repeat through a layer; a power of two."""
_SLACK = 1e-9
"""Relative rounding of times that counts as none."""


@dataclass(frozen=True, slots=True)
class InterruptTimes:
    """`layer_safepoints` are in each layer at least, and as many more that two are `response_s` apart on average at
    most; the number is a power of two. Each piece of a run of four is `growth` times as long as the one before: an
    engine's linear work and attention are not cut alike. `answer_s`: from the safepoint to the answer, in which the
    step stands still.
    """

    answer_s: float = 0.0
    layer_safepoints: int = 1
    response_s: float = 0.005
    growth: float = 1.0

    def pieces(self, layer_s: float, most: int) -> int:
        """Pieces of a layer that takes so many seconds; at most `most`, a power of two."""
        pieces = self.layer_safepoints
        while pieces < most and layer_s / pieces > self.response_s * (1.0 + _SLACK):
            pieces *= 2
        return pieces

    def starts(self, pieces: int) -> tuple[float, ...]:
        """Where the pieces of a run begin, as shares of the run, in a layer of so many pieces."""
        return _starts(min(pieces, RUN), self.growth)

    def response_at(self, after_s: float, step_s: float, layers: int) -> float:
        """Seconds from an interrupt, `after_s` after the step began, to its answer."""
        pieces = self.pieces(step_s / layers, 1 << 16)
        starts = self.starts(pieces)
        run_s = step_s / layers * len(starts) / pieces
        at = after_s % run_s / run_s
        return (min(start for start in (*starts, 1.0) if start >= at) - at) * run_s + self.answer_s


@lru_cache(maxsize=64)
def _starts(pieces: int, growth: float) -> tuple[float, ...]:
    *starts, whole = accumulate((growth**number for number in range(pieces)), initial=0.0)
    return tuple(start / whole for start in starts)
