"""How an engine answers interrupts is found again from its answers."""

import random

import pytest

from cli.profiling.interrupt_fit import InterruptTrial, fit_interrupts
from dunlin.cost.interrupts import InterruptTimes


def trials(times: InterruptTimes, layers: int, count: int = 60) -> list[InterruptTrial]:
    draw = random.Random(5)
    steps = [(step_s, step_s * draw.uniform(0.1, 0.85)) for step_s in (0.02, 0.03, 0.06) for _ in range(count)]
    return [InterruptTrial(100, step_s, at_s, times.response_at(at_s, step_s, layers)) for step_s, at_s in steps]


@pytest.mark.parametrize("truth", [InterruptTimes(0.0008, 4), InterruptTimes(0.002, 1), InterruptTimes(0.0, 2)])
def test_known_times_are_found_again(truth: InterruptTimes) -> None:
    found = fit_interrupts(trials(truth, layers=8), layers=8)
    assert found.layer_safepoints == truth.layer_safepoints
    assert found.answer_s == pytest.approx(truth.answer_s, abs=1e-9)


def test_too_few_say_nothing() -> None:
    assert fit_interrupts(trials(InterruptTimes(0.01, 4), 8, count=2), 8) == InterruptTimes()
