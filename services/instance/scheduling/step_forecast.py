"""How long the outstanding steps will take: by the engine's profile, or what its steps have taught, corrected by what
steps took just now. Decides nothing.
"""

from dataclasses import dataclass
from math import fsum
from typing import Any

from dunlin.cost.models import BatchCounts, StepTimes
from dunlin.cost.step_fit import LearntSteps
from dunlin.effects import Effect, Send
from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import I8, I64, StepTimesSource
from services.instance.config import InstanceConfig
from services.instance.scheduling.step_learner import StepErrors, StepLearner
from services.instance.scheduling.step_times import NEEDS_STEP_TIMES, PROFILES, KnownStepTimes, SaveLearntSteps
from services.instance.sequence.wait_clock import StepTiming

CORRECTION_WEIGHT = 0.05
"""Weight of one step in the running mean of measured over profiled time: a machine's speed changes within seconds."""
LEAST_CORRECTION, MOST_CORRECTION = 0.25, 4.0
"""A profile that is further off is of another engine, or the process was stopped: no step is believed beyond this."""


@dataclass(slots=True)
class SentStep:
    """An outstanding step. `profiled_s`: what the profile or the model says of it, 0 without one. `counts`: None where
    nothing is predicted or learnt."""

    sent_s: float
    profiled_s: float = 0.0
    counts: BatchCounts | None = None


class StepForecast:
    """Owns the predicted end of each outstanding step, and the correction. Without a profile, or before the steps have
    taught enough, it predicts nothing.

    It is the `StepTimes` of this engine, too. Resumed steps, whose rest is not known, count as done at once. `learner`
    is there where a policy needs predictions and there is no profile.
    """

    def __init__(self, profile: StepTimes | None = None, learner: StepLearner | None = None) -> None:
        self.correction = 1.0
        self.errors = StepErrors() if learner is None else learner.errors
        self._profile = profile
        self._learner = learner
        self._steps: dict[int, SentStep] = {}
        self._running_since_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether its predictions may be used."""
        return self._profile is not None or (self._learner is not None and self._learner.is_trusted)

    @property
    def times(self) -> "StepForecast | None":
        """Itself, where its predictions may be used."""
        return self if self.is_on else None

    @property
    def token_s(self) -> float:
        """Seconds per token of the last step with a chunk; 0 before there was one, and where nothing is learnt."""
        return 0.0 if self._learner is None else self._learner.token_s

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds that a step of these counts takes; 0 where it predicts nothing."""
        times = self._times
        return times.step_s(batch) * self.correction if times is not None else 0.0

    def remaining_s(self, now_s: float) -> float:
        """Seconds until the engine will have answered all outstanding steps; 0 where it predicts nothing."""
        if not self._steps:
            return 0.0
        total_s = self.correction * fsum(step.profiled_s for step in self._steps.values())
        first_s = self.correction * next(iter(self._steps.values())).profiled_s
        return total_s - min(first_s, max(0.0, now_s - self._running_since_s))

    def elapsed_s(self, now_s: float) -> float:
        """Seconds since the running step began; 0 where none runs."""
        return max(0.0, now_s - self._running_since_s) if self._steps else 0.0

    def sent_s(self, step: int) -> float:
        """Seconds that an outstanding step will take in all; 0 where it predicts nothing."""
        return self.correction * self._steps[step].profiled_s if step in self._steps else 0.0

    def on_sent(self, now_s: float, step: Step) -> None:
        """A step was sent to the engine."""
        if not self._steps:
            self._running_since_s = now_s
        sent = self._steps[step.step] = SentStep(now_s)
        times = self._times
        if times is not None or self._learner is not None:
            sent.counts = step_counts(step.start, step.stop, step.sample)
            sent.profiled_s = 0.0 if times is None else times.step_s(sent.counts)

    def on_group_step_sent(self, now_s: float, step: int) -> None:
        """A step of a group was sent: what it takes depends on other engines, so it is neither predicted nor learnt."""
        if not self._steps:
            self._running_since_s = now_s
        self._steps[step] = SentStep(now_s)

    def on_done(self, now_s: float, done: StepDone) -> StepTiming:
        """A step was answered: the next one runs since now, unless a queued one was taken back before its turn. One
        that rows left says nothing of the profile.
        """
        began_s = self._running_since_s
        if done.step == next(iter(self._steps), done.step):
            self._running_since_s = now_s
        sent = self._steps.pop(done.step, None) or SentStep(began_s)
        predicted_s = sent.profiled_s * self.correction
        if sent.counts is not None and done.compute_s > 0 and not done.left and not done.dropped:
            self._compare(sent.counts, sent.profiled_s, done.compute_s)
        return StepTiming(done.step, sent.sent_s, began_s, now_s, predicted_s if self.is_on else 0.0)

    def _compare(self, counts: BatchCounts, profiled_s: float, taken_s: float) -> None:
        """Correct by what the step took; first see how far off its prediction was, then learn from it."""
        if profiled_s > 0:
            self.errors.add(counts.prefill_rows > 0, abs(profiled_s * self.correction / taken_s - 1.0))
            taken = min(MOST_CORRECTION, max(LEAST_CORRECTION, taken_s / profiled_s))
            self.correction += CORRECTION_WEIGHT * (taken - self.correction)
        if self._learner is not None and self._learner.wants(counts):
            self._learner.add(counts, taken_s)

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell where the times of steps come from, and how far off they are."""
        prompts, decodes = self.errors.means
        taken = 0 if self._learner is None else self._learner.taken
        return {
            "step_times": self._source(),
            "prompt_step_error": prompts,
            "decode_step_error": decodes,
            "learnt_steps_total": taken,
        }

    def _source(self) -> StepTimesSource:
        if self._profile is not None:
            return StepTimesSource.PROFILE
        if self._learner is None:
            return StepTimesSource.NONE
        return StepTimesSource.LEARNT if self._learner.is_trusted else StepTimesSource.LEARNING

    @property
    def _times(self) -> StepTimes | None:
        """What predicts: a model also before it is trusted, so that it can prove itself."""
        return self._profile if self._learner is None else self._learner.model

    def learnt(self) -> list[Effect]:
        """What is to be saved of what was learnt since the last time."""
        found = None if self._learner is None else self._learner.to_save()
        return [] if found is None else [Send(PROFILES, SaveLearntSteps(found))]

    def clear(self) -> None:
        """The engine is gone with its queue. What was learned of its speed stays."""
        self._steps.clear()
        if self._learner is not None:
            self._learner.on_engine_lost()


def make_forecast(config: InstanceConfig, known: KnownStepTimes) -> StepForecast:
    """The forecast of an instance: by the profile if it has one; else it learns, where a policy needs predictions."""
    if known is not None and not isinstance(known, LearntSteps):
        return StepForecast(known)
    if not needs_step_times(config):
        return StepForecast()
    return StepForecast(learner=StepLearner(config.scheduler.budget_tokens, config.objectives.tpot_s, known))


def needs_step_times(config: InstanceConfig) -> list[str]:
    """The policies of this instance that do less where nothing predicts their steps."""
    return [name for name in (config.scheduler.policy, config.interrupts.policy) if name in NEEDS_STEP_TIMES]


def step_counts(starts: I64, stops: I64, samples: I8) -> BatchCounts:
    """The counts of a composed step's rows. A row of one position that samples is taken for a decode row."""
    rows, context = len(starts), sum(stops)
    if context - sum(starts) == rows and all(samples):  # one token each: nearly always
        return BatchCounts(decode_rows=rows, decode_context=context)
    counts = BatchCounts()
    for start, stop, is_sampled in zip(starts, stops, samples, strict=True):
        if is_sampled and stop - start == 1:
            counts.add_decode(stop)
        else:
            counts.add_prefill(stop - start, start)
    return counts
