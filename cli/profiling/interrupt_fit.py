"""Measures how an engine answers interrupts: where it cuts layers, from the safepoints that it passes, and how long
after a safepoint the answer comes, by the tokens of the row that leaves.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import fsum, sqrt
from statistics import linear_regression, mean, median

from cli.profiling.engine_probe import EngineProbe
from dunlin.cost.interrupts import InterruptTimes, LayerPieces

PROMPTS = (200, 500, 1100)
"""Interrupted."""
_PIECES_MOST = 64
"""Of a layer, as it is kept."""
_PARTS = (0.1, 0.85)
"""Of a step's time, between which interrupts come."""
_STEPS = 3
"""Undisturbed steps before each."""
_FEWEST = 8
"""Trials that say something."""


@dataclass(frozen=True, slots=True)
class InterruptPlan:
    """`pieces_of`: tokens of the prompts whose steps' pieces are counted, in `repeats` steps, each after one that is
    not; then `interrupts` of each of `PROMPTS`.
    """

    pieces_of: tuple[int, ...]
    repeats: int
    interrupts: int


# Each prompt is at most half as long again as the one before, and some stand on either side of the lengths at which a
# prompt has one block of 512 tokens more (256 past a multiple of it): between two of them layers are cut alike.
_PIECES_OF = (100, 140, 200, 280, 400, 560, 752, 784, 1010, 1264, 1296, 1600, 1776, 1808, 2400, 3200)
USUAL_PLAN = InterruptPlan(_PIECES_OF, 4, 20)
QUICK_PLAN = InterruptPlan((140, 400, 1130), 1, 3)


@dataclass(frozen=True, slots=True)
class InterruptTrial:
    """An interrupt, `after_s` after the step of a prompt of `tokens` began, was answered after `took_s`, of which
    `delay_s` after the safepoint.

    Undisturbed, such a step takes `step_s`. All are the engine's seconds.
    """

    tokens: int
    step_s: float
    after_s: float
    took_s: float
    delay_s: float


def measure_interrupts(probe: EngineProbe, plan: InterruptPlan = USUAL_PLAN) -> InterruptTimes:
    """Count pieces of steps, interrupt steps, and fit. Without a step long enough: the default. Raises ProbeError."""
    layers = len(probe.ready.layers)
    steps: dict[int, list[list[float]]] = {}
    for tokens in _in_any_order(_fitting(probe, plan.pieces_of), plan.repeats, random.Random(0)):
        probe.piece_times(tokens)
        steps.setdefault(tokens, []).append(probe.piece_times(tokens))
    measured = [layer_pieces(found, layers) for found in steps.values()]
    times = InterruptTimes(measured=tuple(sorted(measured, key=lambda each: each.layer_s)))
    return fit_answer(times, interrupt_trials(probe, PROMPTS, plan.interrupts, seed=0))


def layer_pieces(steps: Sequence[Sequence[float]], layers: int) -> LayerPieces:
    """One layer for all the layers of some steps of one prompt, given the seconds of each step's pieces: as many pieces
    as a layer has on average, each as long as the average of its share of all pieces in order of length; then spread
    so that a random moment is as far from the next safepoint, on average, as in those steps. (Averages alone bring
    safepoints nearer: the mean wait is half the sum of the squares over the sum.) What makes a whole step slower is
    none of it: each step counts as if it took as long as all of them on average.
    """
    step_s = fsum(each for step in steps for each in step) / len(steps)
    pieces = sorted(each * step_s / fsum(step) for step in steps for each in step)
    count = min(max(round(len(pieces) / len(steps) / layers), 1), _PIECES_MOST, len(pieces))
    bounds = [len(pieces) * number // count for number in range(count + 1)]
    lengths = [fsum(pieces[a:b]) / (b - a) for a, b in pairwise(bounds)]
    lengths = _spread(lengths, fsum(each * each for each in pieces) / fsum(pieces))
    whole = fsum(lengths)
    starts = accumulate(lengths[:-1], initial=0.0)
    return LayerPieces(step_s / layers, tuple(round(start / whole, 5) for start in starts))


def _spread(lengths: Sequence[float], double_wait_s: float) -> list[float]:
    """The lengths moved away from their mean, or towards it, until the sum of their squares over their sum is as given,
    as far as none gets below 0; the sum stays.
    """
    middle = mean(lengths)
    spread, wanted = fsum((each - middle) ** 2 for each in lengths), fsum(lengths) * (double_wait_s - middle)
    if spread <= 0.0 or wanted <= 0.0:
        return list(lengths)
    most = middle / (middle - min(lengths))
    scale = min(sqrt(wanted / spread), most)
    return [middle + scale * (each - middle) for each in lengths]


def interrupt_trials(probe: EngineProbe, prompts: Sequence[int], count: int, seed: int) -> list[InterruptTrial]:
    """`count` interrupts of each prompt that the engine can hold, at random parts of its step; those that came in time.

    Raises ProbeError.
    """
    draw, trials = random.Random(seed), list[InterruptTrial]()
    for tokens in _in_any_order(_fitting(probe, prompts), count, draw):
        step_s = median(probe.prompt_time(tokens) for _ in range(_STEPS))
        after_s = step_s * draw.uniform(*_PARTS)
        answer = probe.interrupt_time(tokens, after_s)
        if answer is not None:
            trials.append(InterruptTrial(tokens, step_s, after_s, answer.took_s, answer.delay_s))
    return trials


def _in_any_order(prompts: Sequence[int], count: int, draw: random.Random) -> list[int]:
    """Each so many times: how an engine cuts a prompt depends on those that it computed before."""
    order = [*prompts] * count
    draw.shuffle(order)
    return order


def fit_answer(times: InterruptTimes, trials: Sequence[InterruptTrial]) -> InterruptTimes:
    """The times with the answer's delay that the trials show: the line through the medians of each prompt's. Fewer than
    eight trials say nothing.
    """
    if len(trials) < _FEWEST:
        return times
    lengths = sorted({trial.tokens for trial in trials})
    delays = [median(trial.delay_s for trial in trials if trial.tokens == tokens) for tokens in lengths]
    fixed_s, token_s = _line(lengths, delays)
    return replace(times, answer_s=fixed_s, answer_token_s=token_s)


def _line(lengths: Sequence[int], delays: Sequence[float]) -> tuple[float, float]:
    """(height at 0, slope) of the least squares, neither below 0."""
    if len(lengths) == 1:
        return delays[0], 0.0
    slope, height = linear_regression(lengths, delays)
    if slope < 0.0:
        return mean(delays), 0.0
    if height < 0.0:
        return 0.0, linear_regression(lengths, delays, proportional=True).slope
    return height, slope


def _fitting(probe: EngineProbe, prompts: Sequence[int]) -> list[int]:
    limit = min(probe.ready.slots // 2, probe.ready.max_positions - 2)
    return [each for each in prompts if each <= limit]
