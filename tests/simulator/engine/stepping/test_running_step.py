"""Where the safepoints of a modelled step are, and how many it has passed."""

from itertools import pairwise

import pytest

from dunlin.cost.interrupts import InterruptTimes, LayerPieces
from dunlin.messages.engine import Step
from dunlin.messages.types import i8, i32, i64
from simulator.engine.stepping.running_step import LAYER_UNITS, SimulatedRunningStep
from simulator.engine.stepping.step_queue import QueuedSimStep

LAYER_S = 0.012
THIRD = (0.0, 1 / 3)


def step(interrupts: InterruptTimes) -> SimulatedRunningStep:
    """A step of two layers of 12 ms, from second 0 on."""
    order = Step(1, i64([7]), i64([0]), i64([9]), i8([1]), i32([0]), i64([0]), i64([9]))
    return SimulatedRunningStep(QueuedSimStep(order, [0]), 2, 2 * LAYER_S, 0.0, 0.0, interrupts)


@pytest.mark.parametrize(
    ("interrupts", "shares"),
    [
        (InterruptTimes(response_s=1.0), (0.0, 1.0)),
        (InterruptTimes(layer_safepoints=2, response_s=1.0), (0.0, 0.5, 1.0, 1.5)),
        (InterruptTimes(measured=(LayerPieces(LAYER_S, THIRD),)), (0.0, 1 / 3, 1.0, 4 / 3)),
        (
            InterruptTimes(measured=(LayerPieces(LAYER_S / 2, THIRD),)),
            [half / 2 + share / 6 for half in range(4) for share in (0, 1)],
        ),
    ],
)
def test_safepoints_are_where_the_pieces_begin(interrupts: InterruptTimes, shares: list[float]) -> None:
    running = step(interrupts)
    assert running.safepoints == len(shares)
    for passed, (before, share) in enumerate(pairwise(shares)):
        at_s = (before + 0.9 * (share - before)) * LAYER_S
        assert running.next_safepoint(at_s) == pytest.approx(share * LAYER_UNITS, abs=1)
        assert running.passed(at_s) == passed
    assert running.next_safepoint(1.999 * LAYER_S) is None
    assert running.passed(10.0) == len(shares) - 1


def test_an_interrupt_at_a_safepoint_need_not_wait() -> None:
    running = step(InterruptTimes(measured=(LayerPieces(LAYER_S, THIRD),)))
    assert running.next_safepoint(LAYER_S) == LAYER_UNITS
    assert running.wait_s(LAYER_S, LAYER_UNITS) == 0.0
