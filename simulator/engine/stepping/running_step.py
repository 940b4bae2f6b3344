"""The running step of a modelled engine as segments of time: layers, and in long layers pieces of their attention.

Its work is counted in units, `LAYER_UNITS` per layer, so that a place in it is one integer, whichever rows share the
step: (layer, block) = divmod(units, LAYER_UNITS). A safepoint is every layer's start, and the start of each piece of a
layer, as `InterruptTimes` says.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

from dunlin.cost.interrupts import InterruptTimes
from dunlin.messages.engine import Step
from simulator.engine.stepping.step_queue import QueuedSimStep

LAYER_UNITS = 1 << 16
LOOK_S = 0.001
"""How often a step that waits for peers passes a safepoint, at least."""
_SLACK = 1e-9
"""Relative rounding of times that counts as none."""


@dataclass(slots=True)
class SimulatedRunningStep:
    """The step that computes, with the rows that it has now, for which the whole of it takes `whole_s` over `layers`.

    At `since_s` it stood at `queued.units`. `began_s` is when it was started with all its rows. `has_paused`:
    interrupts took effect at a safepoint of it. `held_s`: delay that its end has not had yet, `lost_s`: delay since
    `since_s`. `is_waiting`: it is through but for peers, whose steps began later or are not through, since
    `waiting_since_s`. `is_answering`: it stands still at a safepoint. `interrupts`: where its safepoints are.
    """

    queued: QueuedSimStep
    layers: int
    whole_s: float
    began_s: float
    since_s: float
    interrupts: InterruptTimes = field(default_factory=InterruptTimes)
    first_units: int = 0
    held_s: float = 0.0
    lost_s: float = 0.0
    has_paused: bool = False
    is_waiting: bool = False
    waiting_since_s: float | None = None
    is_answering: bool = False

    @property
    def is_preemptible(self) -> bool:
        """Whether it has safepoints even if all its rows decode."""
        return (
            self.has_paused
            or self.queued.has_peers
            or (isinstance(self.queued.step, Step) and self.queued.step.preemptible)
        )

    @property
    def end_in_s(self) -> float:
        """Seconds from `since_s` to its end, unless it is held up."""
        return self.whole_s * (1.0 - self.queued.units / (self.layers * LAYER_UNITS))

    @property
    def first_s(self) -> float:
        """Seconds that it takes in all from where it began: a suspended step goes on where it stood."""
        return self.whole_s * (1.0 - self.first_units / (self.layers * LAYER_UNITS))

    def hold(self, seconds: float) -> None:
        """It computes nothing for `seconds`: another process uses the engine's CPU, or copies its memory."""
        self.held_s += seconds
        self.lost_s += seconds

    def next_safepoint(self, now_s: float) -> int | None:
        """The units of the first safepoint that is not passed; None: the step ends first."""
        if self.whole_s <= 0.0:
            return None
        run, starts = self._run
        worked = self.queued.units + max(0.0, self._worked_s(now_s)) / self._unit_s
        runs, rest = divmod(worked * (1.0 - _SLACK), run)
        number = bisect_left(starts, rest)
        units = int(runs) * run + (starts[number] if number < len(starts) else run)
        return units if units < self.layers * LAYER_UNITS else None

    def wait(self, now_s: float) -> None:
        """It waits for peers from now on, or still."""
        self.is_waiting = True
        if self.waiting_since_s is None:
            self.waiting_since_s = now_s

    def late_s(self, now_s: float, begun_s: float) -> float:
        """Seconds until it may be through if its peers have begun at `begun_s` only."""
        late_s = begun_s + self.first_s - now_s
        return late_s if begun_s > self.began_s and late_s > _SLACK * self.whole_s else 0.0

    def looks(self, now_s: float) -> int:
        """Safepoints passed while it waited: a live engine looks for its peers all the time."""
        return 0 if self.waiting_since_s is None else int((now_s - self.waiting_since_s) / LOOK_S)

    def passed(self, now_s: float) -> int:
        """Safepoints passed by now, without the end: as the live engine's progress page counts them."""
        if self.whole_s <= 0.0:
            return 0
        worked = self.queued.units + max(0.0, self._worked_s(now_s)) / self._unit_s
        run, starts = self._run
        runs, rest = divmod(worked, run)
        return min(int(runs) * len(starts) + bisect_right(starts, rest), self.safepoints) - 1

    @property
    def safepoints(self) -> int:
        """All safepoints of the step, its end included."""
        run, starts = self._run
        return self.layers * (LAYER_UNITS // run) * len(starts)

    def wait_s(self, now_s: float, units: int) -> float:
        """Seconds until the step reaches `units`."""
        needed_s = (units - self.queued.units) * self._unit_s
        wait_s = needed_s - self._worked_s(now_s)
        return wait_s if wait_s > _SLACK * self.whole_s else 0.0

    def go_on(self, now_s: float, units: int) -> None:
        """It stands at `units` now."""
        self.queued.units = units
        self.has_paused = True
        self.since_s = now_s
        self.held_s = self.lost_s = 0.0
        self.is_answering = False

    @property
    def _unit_s(self) -> float:
        return self.whole_s / (self.layers * LAYER_UNITS)

    @property
    def _run(self) -> tuple[int, tuple[int, ...]]:
        """Units of a run of pieces, and where in it each of them begins."""
        return _run_units(*self.interrupts.cut(self.whole_s / self.layers, LAYER_UNITS))

    def _worked_s(self, now_s: float) -> float:
        """Seconds of its work since `since_s`; below 0 while a delay is longer."""
        return now_s - self.since_s - self.lost_s


@lru_cache(maxsize=256)
def _run_units(runs: int, starts: tuple[float, ...]) -> tuple[int, tuple[int, ...]]:
    run = LAYER_UNITS // runs
    return run, tuple(round(start * run) for start in starts)
