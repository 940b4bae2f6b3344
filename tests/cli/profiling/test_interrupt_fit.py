"""How an engine answers interrupts is found again from its pieces and its answers."""

import random

import pytest

from cli.profiling.interrupt_fit import InterruptTrial, fit_answer, layer_pieces
from dunlin.cost.interrupts import InterruptTimes, LayerPieces

MEASURED = (LayerPieces(0.003, (0.0, 0.2)), LayerPieces(0.006, (0.0, 0.1, 0.4)))


def trials(times: InterruptTimes, layers: int, count: int = 60) -> list[InterruptTrial]:
    draw = random.Random(5)
    steps = [(step_s, step_s * draw.uniform(0.1, 0.85)) for step_s in (0.02, 0.03, 0.06) for _ in range(count)]
    return [InterruptTrial(100, step_s, at_s, times.response_at(at_s, step_s, layers)) for step_s, at_s in steps]


@pytest.mark.parametrize("measured", [(), MEASURED])
@pytest.mark.parametrize("answer_s", [0.0, 0.0008, 0.002])
def test_a_known_answer_is_found_again(answer_s: float, measured: tuple[LayerPieces, ...]) -> None:
    truth = InterruptTimes(answer_s, measured=measured)
    found = fit_answer(InterruptTimes(0.7, measured=measured), trials(truth, layers=8), layers=8)
    assert found.answer_s == pytest.approx(answer_s, abs=1e-12)
    assert found.measured == measured


def test_too_few_say_nothing() -> None:
    times = InterruptTimes(measured=MEASURED)
    assert fit_answer(times, trials(InterruptTimes(0.01, 4), 8, count=2), 8) == times


def test_a_layer_has_its_share_of_the_pieces_the_longest_last() -> None:
    """Two layers of pieces of 1, 2 and 5 ms, in two steps, the second twice as slow."""
    layer = [0.002, 0.005, 0.001]
    found = layer_pieces([layer * 2, [2 * each for each in layer] * 2], layers=2)
    assert found.layer_s == pytest.approx(0.012)
    lengths = [sum(group) / 4 for group in ([1, 1, 2, 2], [2, 2, 4, 4], [5, 5, 10, 10])]
    assert found.starts == pytest.approx((0.0, lengths[0] / sum(lengths), sum(lengths[:2]) / sum(lengths)), abs=1e-5)


def test_a_layer_of_very_many_pieces_is_kept_as_fewer() -> None:
    found = layer_pieces([[0.001] * 1000], layers=2)
    assert len(found.starts) == 64
    assert found.starts[1] == pytest.approx(1 / 64, rel=0.01)


def test_fewer_pieces_than_layers_make_one() -> None:
    """A look may miss short ones."""
    assert layer_pieces([[0.01]], layers=4) == LayerPieces(0.0025, (0.0,))
