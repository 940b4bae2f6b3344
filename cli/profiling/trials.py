"""Steps to be measured on a live engine, and what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.cost.models import BatchCounts

DISCARDED = 2
"""Steps at the beginning of a trial that are not counted: caches and the second outstanding step settle."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One row of a trial: `new` tokens after `past` ones whose KV is there. A decode row has one new token."""

    past: int
    new: int = 1
    decode: bool = True


@dataclass(frozen=True, slots=True)
class StepTrial:
    """A step to be measured: its rows, the number of repeats, and whether tokens are drawn with a temperature."""

    regime: str
    rows: tuple[TrialRow, ...]
    repeats: int = 8
    is_sampled: bool = False

    def batch(self) -> BatchCounts:
        """The counts of its middle step: the decode rows' contexts grow by one a step."""
        batch = BatchCounts()
        for row in self.rows:
            if row.decode:
                batch.add_decode(row.past + 1 + DISCARDED + self.repeats // 2)
            else:
                batch.add_prefill(row.new, row.past)
        batch.sampled_rows = len(self.rows) if self.is_sampled else 0
        return batch


@dataclass(frozen=True, slots=True)
class ProbedStep:
    """One step as it was seen: the engine's time in it, and what else passed since the one before it ended, less what
    this process computed itself where it shares a core with the engine.
    """

    compute_s: float
    gap_s: float


@dataclass(frozen=True, slots=True)
class InterruptAnswer:
    """An answer that came `took_s` after its interrupt, and `delay_s` of these after the safepoint."""

    took_s: float
    delay_s: float


def lower_quartile(values: Sequence[float]) -> float:
    """The lower quartile: the time on a machine that does nothing else, or nearly."""
    return sorted(values)[len(values) // 4]
