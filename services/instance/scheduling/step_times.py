"""What the process around the core knows of step times, and what it is told to keep of them. Never on a wire."""

from dataclasses import dataclass

from dunlin.cost.models import StepTimes
from dunlin.cost.step_fit import LearntSteps
from dunlin.effects import Address

PROFILES = Address("profiles", "")
"""Takes `SaveLearntSteps`; answers nothing."""

NEEDS_STEP_TIMES = ("slo_aware", "harvest", "on_arrival", "on_arrival_rows", "recall", "recall_rows")
"""Policies that do less where nothing predicts the times of steps."""

KnownStepTimes = StepTimes | LearntSteps | None
"""What is known of an engine at the start: a profile, or what its steps taught the processes before."""


@dataclass(frozen=True, slots=True)
class SaveLearntSteps:
    """Keep this for the next process of such an engine, in place of what was kept before."""

    learnt: LearntSteps
