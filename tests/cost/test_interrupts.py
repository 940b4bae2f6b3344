"""Where safepoints are, and when an interrupt is answered."""

import pytest

from dunlin.cost.interrupts import InterruptTimes, LayerPieces

SHORT, LONG = LayerPieces(0.004, (0.0, 0.25)), LayerPieces(0.016, (0.0, 0.5, 0.75))
MEASURED = InterruptTimes(measured=(SHORT, LONG))


@pytest.mark.parametrize(
    ("layer_s", "least", "pieces"), [(0.004, 1, 1), (0.005, 1, 1), (0.0051, 1, 2), (0.021, 1, 8), (0.004, 4, 4)]
)
def test_unmeasured_pieces_are_short_and_even(layer_s: float, least: int, pieces: int) -> None:
    assert InterruptTimes(layer_safepoints=least).cut(layer_s, 1 << 16) == (pieces, (0.0,))


def test_no_layer_has_more_runs_than_it_can() -> None:
    assert InterruptTimes().cut(100.0, 16) == (16, (0.0,))
    assert MEASURED.cut(100.0, 16) == (16, LONG.starts)


def test_an_answer_takes_longer_the_more_tokens_leave() -> None:
    times = InterruptTimes(answer_s=0.001, answer_token_s=2e-6)
    assert times.answer_delay_s(0) == 0.001
    assert times.answer_delay_s(1500) == pytest.approx(0.004)


@pytest.mark.parametrize(("layer_s", "like"), [(0.001, SHORT), (0.0079, SHORT), (0.0081, LONG), (0.02, LONG)])
def test_a_layer_is_cut_like_the_measured_one_next_to_it_by_ratio(layer_s: float, like: LayerPieces) -> None:
    assert MEASURED.cut(layer_s, 1 << 16) == (1, like.starts)


@pytest.mark.parametrize(("layer_s", "runs"), [(0.0239, 1), (0.025, 2), (0.047, 2), (0.049, 4)])
def test_a_layer_longer_than_all_is_cut_like_several(layer_s: float, runs: int) -> None:
    """Pieces do not grow with the layer."""
    assert MEASURED.cut(layer_s, 1 << 16) == (runs, LONG.starts)
