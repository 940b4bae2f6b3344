"""The times of a modelled engine: the protocol and its simplest implementation. `dunlin.cost` has fitted ones."""

from dataclasses import dataclass
from typing import Protocol

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_steps import GroupWork
from dunlin.cost.models import UNSTEADINESS_PIECE_S, BatchCounts, StepTimes
from dunlin.messages.types import TransferKind


class Timing(Protocol):
    """Times of one model on one device under one parallelism."""

    @property
    def load_s(self) -> float:
        """Seconds from the start of the process until it is ready."""
        ...

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds for a step of these counts."""
        ...

    def group_s(self, work: GroupWork) -> float:
        """Seconds for a step that computes with those of peers, if all begin at once."""
        ...

    def move_s(self, kind: TransferKind, byte_count: int) -> float:
        """Seconds to move `byte_count` bytes by this kind of move, without other traffic."""
        ...


@dataclass(frozen=True, slots=True)
class LinearTiming:
    """A step takes `fixed_s` plus `token_s` per token, a move `per_move_s` plus `move_byte_s` per byte; seconds."""

    fixed_s: float = 0.01
    token_s: float = 0.0
    per_move_s: float = 0.005
    move_byte_s: float = 0.0
    load_s: float = 0.0

    def step_s(self, batch: BatchCounts) -> float:
        """See `Timing`."""
        return self.fixed_s + self.token_s * (batch.prefill_tokens + batch.decode_rows)

    def group_s(self, work: GroupWork) -> float:
        """See `Timing`: what is exchanged, and served, takes no time."""
        return self.step_s(work.own)

    def move_s(self, kind: TransferKind, byte_count: int) -> float:
        """See `Timing`."""
        return self.per_move_s + self.move_byte_s * byte_count


def profile_of(timing: Timing) -> StepTimes:
    """What a profile of such an engine says: its times without the variation of the machine."""
    return timing.steady if isinstance(timing, UnsteadyTiming) else timing


class UnsteadyTiming:
    """A timing with the measured machine's variation over time, from the point `start` (0 to 1) of the record.

    `steady` is without it. `slowness` multiplies the time of every step. Each engine needs an object of its own: two
    with one object would divide its course.
    """

    def __init__(self, timing: EngineTiming, slowness: float = 1.0, start: float = 0.0) -> None:
        self.load_s = timing.load_s
        self.steady = timing
        self._slowness = slowness
        self._ratios = timing.unsteadiness or (1.0,)
        self._at = start * len(self._ratios)

    def step_s(self, batch: BatchCounts) -> float:
        """See `Timing`."""
        return self._unsteady(self.steady.step_s(batch))

    def group_s(self, work: GroupWork) -> float:
        """See `Timing`."""
        return self._unsteady(self.steady.group_s(work))

    def move_s(self, kind: TransferKind, byte_count: int) -> float:
        """See `Timing`."""
        return self.steady.move_s(kind, byte_count)

    def _unsteady(self, steady_s: float) -> float:
        return self._taken(steady_s / UNSTEADINESS_PIECE_S) * UNSTEADINESS_PIECE_S * self._slowness

    def _taken(self, pieces: float) -> float:
        """How long `pieces` of steady time take, in pieces: a long step averages over many ratios of the record."""
        taken = 0.0
        while pieces > 0.0:
            whole = int(self._at)
            part = min(pieces, whole + 1.0 - self._at)
            taken += part * self._ratios[whole % len(self._ratios)]
            self._at += part
            pieces -= part
        return taken
