"""How an engine answers interrupts is found again from its answers."""

import random

import pytest

from cli.profiling.interrupt_fit import InterruptTrial, fit_interrupts
from dunlin.cost.interrupts import InterruptTimes


def trials(times: InterruptTimes, layers: int, count: int = 60) -> list[InterruptTrial]:
    draw = random.Random(5)
    steps = [(step_s, step_s * draw.uniform(0.1, 0.85)) for step_s in (0.02, 0.03, 0.06) for _ in range(count)]
    return [InterruptTrial(100, step_s, at_s, times.response_at(at_s, step_s, layers)) for step_s, at_s in steps]


@pytest.mark.parametrize(
    "truth",
    [
        InterruptTimes(0.0008, 4),
        InterruptTimes(0.002, 1),
        InterruptTimes(0.0, 2),
        InterruptTimes(0.001, 4, growth=2.0),
        InterruptTimes(0.0, 1, response_s=0.0035, growth=3.0),
    ],
)
def test_known_times_are_found_again(truth: InterruptTimes) -> None:
    """Others may mean the same for these steps."""
    found = fit_interrupts(trials(truth, layers=8), layers=8)
    answers = [[one.took_s for one in trials(times, layers=8)] for times in (found, truth)]
    assert answers[0] == pytest.approx(answers[1], abs=1e-9)


def test_the_longest_pieces_show() -> None:
    """Even pieces have the same median answer as these, and a much shorter longest one."""
    found = fit_interrupts(trials(InterruptTimes(0.0, 4, growth=5.0), layers=8), layers=8)
    assert found.growth > 1.0


def test_too_few_say_nothing() -> None:
    assert fit_interrupts(trials(InterruptTimes(0.01, 4), 8, count=2), 8) == InterruptTimes()
