"""How an engine answers interrupts is found again from its pieces and its answers."""

from itertools import pairwise

import pytest

from cli.profiling.interrupt_fit import InterruptTrial, fit_answer, layer_pieces
from dunlin.cost.interrupts import InterruptTimes, LayerPieces

MEASURED = (LayerPieces(0.003, (0.0, 0.2)), LayerPieces(0.006, (0.0, 0.1, 0.4)))


def trials(delays: dict[int, list[float]]) -> list[InterruptTrial]:
    """Of prompts of so many tokens, answers so long after the safepoint."""
    return [InterruptTrial(tokens, 0.1, 0.05, 0.003, each) for tokens, found in delays.items() for each in found]


@pytest.mark.parametrize("measured", [(), MEASURED])
@pytest.mark.parametrize(("answer_s", "token_s"), [(0.0, 0.0), (0.0008, 0.0), (0.0004, 6e-7), (0.0, 2e-6)])
def test_a_known_answer_is_found_again(answer_s: float, token_s: float, measured: tuple[LayerPieces, ...]) -> None:
    """Of each prompt two of five answers were disturbed."""
    late = (0.0, 0.009, 0.0, 0.0, 0.02)
    seen = {tokens: [answer_s + token_s * tokens + more for more in late] for tokens in (200, 500, 1100)}
    found = fit_answer(InterruptTimes(0.7, measured=measured, answer_token_s=0.7), trials(seen))
    assert (found.answer_s, found.answer_token_s) == pytest.approx((answer_s, token_s), abs=1e-12)
    assert found.measured == measured


def test_an_answer_never_takes_less_for_more_tokens_nor_less_than_none() -> None:
    falling = fit_answer(InterruptTimes(), trials({200: [0.003] * 4, 500: [0.001] * 4}))
    assert [falling.answer_s, falling.answer_token_s] == pytest.approx([0.002, 0.0])
    steep = fit_answer(InterruptTimes(), trials({100: [0.0] * 4, 200: [0.001] * 4}))
    assert [steep.answer_s, steep.answer_token_s] == pytest.approx([0.0, 0.2 / 50_000])


def test_prompts_of_one_length_say_nothing_of_tokens() -> None:
    found = fit_answer(InterruptTimes(), trials({500: [0.001] * 8}))
    assert (found.answer_s, found.answer_token_s) == (0.001, 0.0)


def test_too_few_say_nothing() -> None:
    times = InterruptTimes(measured=MEASURED)
    assert fit_answer(times, trials({200: [0.01] * 4, 500: [0.02] * 3})) == times


def test_a_layer_has_its_share_of_the_pieces_the_longest_last() -> None:
    """Two layers of pieces of 1, 2 and 5 ms, in two steps, the second twice as slow."""
    layer = [0.002, 0.005, 0.001]
    found = layer_pieces([layer * 2, [2 * each for each in layer] * 2], layers=2)
    assert found.layer_s == pytest.approx(0.012)
    assert found.starts == pytest.approx((0.0, 1 / 8, 3 / 8), abs=1e-5)


def mean_wait(starts: tuple[float, ...]) -> float:
    """Shares of a layer from a random moment to the next safepoint, on average."""
    lengths = [stop - start for start, stop in pairwise((*starts, 1.0))]
    return sum(each * each for each in lengths) / 2


def test_a_random_moment_is_as_far_from_a_safepoint_as_it_was() -> None:
    """Layers are not cut alike: averages of their pieces are less different than those are."""
    steps = [[0.001, 0.004, 0.0015, 0.0055], [0.002, 0.001, 0.005, 0.004]]
    found = layer_pieces(steps, layers=2)
    assert found.layer_s == pytest.approx(0.006)
    expected = sum(each * each for step in steps for each in step) / (2 * 0.024) / 0.006
    assert mean_wait(found.starts) == pytest.approx(expected, rel=1e-3)
    assert len(found.starts) == 2


def test_no_piece_is_spread_below_none() -> None:
    found = layer_pieces([[1e-6, 1e-6, 0.001, 0.009]], layers=2)
    assert 0.0 <= found.starts[1] < 0.5


def test_a_layer_of_very_many_pieces_is_kept_as_fewer() -> None:
    found = layer_pieces([[0.001] * 1000], layers=2)
    assert len(found.starts) == 64
    assert found.starts[1] == pytest.approx(1 / 64, rel=0.01)


def test_fewer_pieces_than_layers_make_one() -> None:
    """A look may miss short ones."""
    assert layer_pieces([[0.01]], layers=4) == LayerPieces(0.0025, (0.0,))
