"""Measures how an engine answers interrupts, and fits `InterruptTimes`: the spread of the answers says how far
safepoints are apart and how evenly, their middle what an answer takes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import fsum
from operator import itemgetter
from statistics import median, quantiles

from cli.profiling.engine_probe import EngineProbe
from dunlin.cost.interrupts import InterruptTimes

PROMPTS = (200, 500, 1100)
INTERRUPTS = 40
"""Of each length."""
QUICK_INTERRUPTS = 6
_PARTS = (0.1, 0.85)
"""Of a step's time, between which interrupts come."""
_STEPS = 3
"""Undisturbed steps before each."""
_LAYER_SAFEPOINTS = (1, 2, 4, 8)
_RESPONSES_S = (0.0025, 0.0035, 0.005, 0.007, 0.01)
_GROWTHS = (1.0, 1.5, 2.0, 3.0, 5.0)
_QUANTILES = 10
"""The last tenth shows the longest pieces."""


@dataclass(frozen=True, slots=True)
class InterruptTrial:
    """An interrupt, `after_s` after the step of a prompt of `tokens` began, was answered after `took_s`.

    Undisturbed, such a step takes `step_s`. All are seconds of the engine's CPU.
    """

    tokens: int
    step_s: float
    after_s: float
    took_s: float


def measure_interrupts(probe: EngineProbe, count: int = INTERRUPTS) -> InterruptTimes:
    """Interrupt steps of prompts, and fit. Without a step long enough: the default. Raises ProbeError."""
    return fit_interrupts(interrupt_trials(probe, PROMPTS, count, seed=0), len(probe.ready.layers))


def interrupt_trials(probe: EngineProbe, prompts: Sequence[int], count: int, seed: int) -> list[InterruptTrial]:
    """`count` interrupts of each prompt that the engine can hold, at random parts of its step; those that came in time.

    Raises ProbeError.
    """
    ready, draw, trials = probe.ready, random.Random(seed), list[InterruptTrial]()
    limit = min(ready.slots // 2, ready.max_positions - 2)
    for tokens in [each for each in prompts if each <= limit]:
        for _ in range(count):
            step_s = median(probe.prompt_time(tokens) for _ in range(_STEPS))
            after_s = step_s * draw.uniform(*_PARTS)
            took_s = probe.interrupt_time(tokens, after_s)
            if took_s is not None:
                trials.append(InterruptTrial(tokens, step_s, after_s, took_s))
    return trials


def fit_interrupts(trials: Sequence[InterruptTrial], layers: int) -> InterruptTimes:
    """The times whose answers are spread as those of the trials; fewer than eight say nothing."""
    if len(trials) < 8:
        return InterruptTimes()
    taken_s = quantiles([trial.took_s for trial in trials], n=_QUANTILES)

    def fitted(times: InterruptTimes) -> tuple[float, InterruptTimes]:
        """(how far it is from the trials, the times with their answer)."""
        modelled_s = quantiles(_answers(times, trials, layers), n=_QUANTILES)
        answer_s = max(0.0, median(taken - answer for taken, answer in zip(taken_s, modelled_s, strict=True)))
        missed = [abs(answer + answer_s - taken) / taken for taken, answer in zip(taken_s, modelled_s, strict=True)]
        return fsum(missed), replace(times, answer_s=answer_s)

    candidates = [InterruptTimes(0.0, *values) for values in product(_LAYER_SAFEPOINTS, _RESPONSES_S, _GROWTHS)]
    return min(map(fitted, candidates), key=itemgetter(0))[1]


def _answers(times: InterruptTimes, trials: Sequence[InterruptTrial], layers: int) -> list[float]:
    return [times.response_at(trial.after_s, trial.step_s, layers) for trial in trials]
