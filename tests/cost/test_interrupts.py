"""Where safepoints are, and when an interrupt is answered."""

import pytest

from dunlin.cost.interrupts import InterruptTimes


@pytest.mark.parametrize(
    ("layer_s", "least", "pieces"), [(0.004, 1, 1), (0.005, 1, 1), (0.0051, 1, 2), (0.021, 1, 8), (0.004, 4, 4)]
)
def test_pieces_of_a_layer_are_short_and_a_power_of_two(layer_s: float, least: int, pieces: int) -> None:
    assert InterruptTimes(layer_safepoints=least).pieces(layer_s, 1 << 16) == pieces


def test_no_layer_has_more_pieces_than_it_can() -> None:
    assert InterruptTimes().pieces(100.0, 16) == 16


def test_an_interrupt_is_answered_after_the_next_safepoint() -> None:
    times = InterruptTimes(answer_s=0.001, layer_safepoints=2)
    assert times.response_at(0.0105, step_s=0.016, layers=4) == pytest.approx(0.0025)
    assert times.response_at(0.012, step_s=0.016, layers=4) == pytest.approx(0.001)


def test_pieces_of_a_run_grow() -> None:
    """A layer of 4 ms has one run, with pieces of 4/15, 8/15, 16/15 and 32/15 ms."""
    times = InterruptTimes(layer_safepoints=4, growth=2.0)
    assert times.starts(4) == pytest.approx((0.0, 1 / 15, 3 / 15, 7 / 15))
    assert times.response_at(0.004, step_s=0.016, layers=4) == 0.0
    assert times.response_at(0.0049, step_s=0.016, layers=4) == pytest.approx(0.012 * 1 / 3 - 0.0049 + 0.004 * 7 / 15)
    assert times.response_at(0.006, step_s=0.016, layers=4) == pytest.approx(0.002)


def test_a_layer_of_many_pieces_has_several_runs() -> None:
    times = InterruptTimes(layer_safepoints=8, growth=2.0)
    assert times.starts(8) == times.starts(4)
    assert times.response_at(0.0021, step_s=0.016, layers=4) == pytest.approx(0.002 / 15 - 0.0001)
