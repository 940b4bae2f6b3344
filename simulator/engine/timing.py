"""How long a modelled engine takes: what it asks for, and the simplest answer. `dunlin.cost` has those that were fitted
to measurements.
"""

from dataclasses import dataclass
from typing import Protocol

from dunlin.cost.models import UNSTEADY_S, Batch, EngineTiming
from dunlin.messages.types import MoveKind


class Timing(Protocol):
    """Times of one model on one device under one parallelism."""

    @property
    def load_s(self) -> float:
        """From the start of the process until it is ready."""
        ...

    def step_s(self, batch: Batch) -> float:
        """Seconds for a step of these counts."""
        ...

    def move_s(self, kind: MoveKind, byte_count: int) -> float:
        """Seconds to move so many bytes that way, with nothing else on the way."""
        ...


@dataclass(frozen=True, slots=True)
class LinearTiming:
    """Every step takes `fixed_s` and `token_s` more for each token computed; every move `per_move_s` and its bytes."""

    fixed_s: float = 0.01
    token_s: float = 0.0
    per_move_s: float = 0.005
    move_byte_s: float = 0.0
    load_s: float = 0.0

    def step_s(self, batch: Batch) -> float:
        """See `Timing`."""
        return self.fixed_s + self.token_s * (batch.prefill_tokens + batch.decode_rows)

    def move_s(self, kind: MoveKind, byte_count: int) -> float:
        """See `Timing`."""
        return self.per_move_s + self.move_byte_s * byte_count


class UnsteadyTiming:
    """A timing as unsteady as the machine that was measured, from the piece of its time that `start` (0 to 1) names.

    Every step takes `slowness` times as long beside. Steps of several engines draw from one course of events.
    """

    def __init__(self, timing: EngineTiming, slowness: float = 1.0, start: float = 0.0) -> None:
        self.load_s = timing.load_s
        self._timing = timing
        self._slowness = slowness
        self._ratios = timing.unsteadiness or (1.0,)
        self._at = start * len(self._ratios)

    def step_s(self, batch: Batch) -> float:
        """See `Timing`."""
        pieces = self._timing.step_s(batch) / UNSTEADY_S
        return self._taken(pieces) * UNSTEADY_S * self._slowness

    def move_s(self, kind: MoveKind, byte_count: int) -> float:
        """See `Timing`."""
        return self._timing.move_s(kind, byte_count)

    def _taken(self, pieces: float) -> float:
        """How many pieces of steady time the next ones take: a long step meets many, of which some are fast."""
        taken = 0.0
        while pieces > 0.0:
            whole = int(self._at)
            part = min(pieces, whole + 1.0 - self._at)
            taken += part * self._ratios[whole % len(self._ratios)]
            self._at += part
            pieces -= part
        return taken
