"""How long the outstanding steps will take: the engine's profile, corrected by what its steps took. Decides nothing."""

from math import fsum

from dunlin.cost.models import BatchCounts, StepTimes
from dunlin.messages.engine import Step, StepDone
from services.instance.sequence.wait_clock import StepTiming

CORRECTION_WEIGHT = 0.05
"""Weight of one step in the running mean of measured over profiled time: a machine's speed changes within seconds."""
LEAST_CORRECTION, MOST_CORRECTION = 0.25, 4.0
"""A profile that is further off is of another engine, or the process was stopped: no step is believed beyond this."""


class StepForecast:
    """Owns the predicted end of each outstanding step, and the correction. Without a profile it predicts nothing.

    It is the `StepTimes` of this engine, too. Resumed steps, whose rest is not known, count as done at once.
    """

    def __init__(self, profile: StepTimes | None = None) -> None:
        self.correction = 1.0
        self._profile = profile
        self._profiled_s: dict[int, float] = {}
        self._sent_s: dict[int, float] = {}
        self._running_since_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is a profile."""
        return self._profile is not None

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds that a step of these counts takes; 0 without a profile."""
        return self._profile.step_s(batch) * self.correction if self._profile is not None else 0.0

    def remaining_s(self, now_s: float) -> float:
        """Seconds until the engine will have answered all outstanding steps; 0 without a profile."""
        if not self._profiled_s:
            return 0.0
        total_s = self.correction * fsum(self._profiled_s.values())
        first_s = self.correction * next(iter(self._profiled_s.values()))
        return total_s - min(first_s, max(0.0, now_s - self._running_since_s))

    def on_sent(self, now_s: float, step: Step) -> None:
        """A step was sent to the engine."""
        if not self._profiled_s:
            self._running_since_s = now_s
        self._profiled_s[step.step] = 0.0 if self._profile is None else self._profile.step_s(step_counts(step))
        self._sent_s[step.step] = now_s

    def on_done(self, now_s: float, done: StepDone) -> StepTiming:
        """A step was answered: the next one runs since now. One that rows left says nothing of the profile."""
        profiled_s, began_s = self._profiled_s.pop(done.step, 0.0), self._running_since_s
        sent_s = self._sent_s.pop(done.step, began_s)
        timing = StepTiming(done.step, sent_s, began_s, now_s, profiled_s * self.correction)
        self._running_since_s = now_s
        if profiled_s > 0 and done.compute_s > 0 and not done.left and not done.dropped:
            taken = min(MOST_CORRECTION, max(LEAST_CORRECTION, done.compute_s / profiled_s))
            self.correction += CORRECTION_WEIGHT * (taken - self.correction)
        return timing

    def clear(self) -> None:
        """The engine is gone with its queue. What was learned of its speed stays."""
        self._profiled_s.clear()
        self._sent_s.clear()


def step_counts(step: Step) -> BatchCounts:
    """The counts of a composed step's rows. A row of one position that samples is taken for a decode row."""
    counts = BatchCounts()
    for start, stop, samples in zip(step.start, step.stop, step.sample, strict=True):
        if samples and stop - start == 1:
            counts.add_decode(stop)
        else:
            counts.add_prefill(stop - start, start)
    return counts
