"""Fits find what made the points, shrug off a few disturbed ones, and never go negative."""

import numpy as np
import pytest

from cli.profiling.fitting.regression import (
    clock_tick_weight,
    fit_piecewise,
    fit_surface,
    non_negative,
    relative_fit,
    surface_values,
)
from dunlin.cost.surface import Surface


def test_a_power_law_is_found_exactly_and_goes_on_in_proportion_beyond_the_grid() -> None:
    x = np.array([[a, b] for a in (1.0, 3.0, 8.0, 20.0, 64.0) for b in (1.0, 5.0, 16.0)])
    seconds = 1e-6 * x[:, 0] ** 2 * x[:, 1]
    surface = fit_surface(("a", "b"), ((0, 2, 4, 6), (0, 2, 4)), x, seconds)
    assert surface_values(surface, x) == pytest.approx(seconds, rel=1e-6)
    outside = np.array([[640.0, 160.0], [0.1, 16.0]])
    assert surface_values(surface, outside) == pytest.approx([surface.at(*point) for point in outside])
    assert surface.at(640.0, 160.0) == pytest.approx(1e-6 * 64**2 * 16 * 10 * 10, rel=1e-4)
    assert surface.at(5.0, 7.0) == pytest.approx(float(surface_values(surface, np.array([[5.0, 7.0]]))[0]), rel=1e-9)


def test_cells_without_points_continue_their_neighbours() -> None:
    x = np.array([[1.0], [2.0], [4.0], [64.0], [128.0]])
    surface = fit_surface(("x",), (tuple(range(8)),), x, 3.0 * x[:, 0])
    assert surface.at(16.0) == pytest.approx(48.0, rel=1e-3)


def test_disturbed_points_do_not_bend_a_fit() -> None:
    x = np.linspace(1, 100, 60)
    features = np.stack([np.ones_like(x), x], axis=1)
    seconds = 2.0 + 0.5 * x
    seconds[::10] *= 8
    assert relative_fit(features, seconds) == pytest.approx([2.0, 0.5], rel=0.03)
    surface = fit_surface(("x",), ((0, 2, 4, 6, 7),), x[:, None], seconds)
    assert surface.at(45.0) == pytest.approx(24.5, rel=0.05)


def test_prices_are_never_negative() -> None:
    x = np.arange(1.0, 30.0)
    seconds = 1.0 / x
    found = relative_fit(np.stack([np.ones_like(x), x], axis=1), seconds)
    assert found.min() >= 0
    assert found.max() > 0


def test_columns_that_say_the_same_are_no_trouble() -> None:
    x = np.arange(1.0, 20.0)
    matrix = np.stack([x, 2 * x, x, np.ones_like(x)], axis=1)
    found = non_negative(matrix, 3 * x + 1)
    assert matrix @ found == pytest.approx(3 * x + 1)
    assert found.min() >= 0


def test_no_logarithm_of_what_is_not_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit_surface(("x",), ((0, 1),), np.array([[0.0]]), np.array([1.0]))


@pytest.mark.parametrize(
    ("axes", "knots", "values"),
    [(("a",), ((0.0, 1.0),), (1.0,)), (("a", "b"), ((0.0,),), (1.0,)), (("a",), ((1.0, 0.0),), (1.0, 2.0))],
)
def test_a_surface_refuses_what_does_not_fit(
    axes: tuple[str, ...], knots: tuple[tuple[float, ...], ...], values: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=r"surface|knots"):
        Surface(axes, knots, values)


def test_a_surface_refuses_coordinates_without_logarithm() -> None:
    with pytest.raises(ValueError, match="needs positive a, b"):
        Surface(("a", "b"), ((0.0,), (0.0,)), (1.0,)).at(1.0, 0.0)


def test_stages_jump_where_the_algorithm_changes_and_go_on_within() -> None:
    sizes = np.array([2.0**e for e in range(8, 24)])
    seconds = np.where(sizes < 2**18, 5e-6 + 4e-11 * sizes, 1e-4 + 1e-8 * np.sqrt(sizes) + 1e-11 * sizes)
    seconds[4] *= 3  # one disturbed point
    surface = fit_piecewise("bytes", (2.0**8, 2.0**18), 2.0**23, sizes, seconds)
    assert surface.at(2.0**18 - 1) == pytest.approx(5e-6 + 4e-11 * 2**18, rel=0.01)
    assert surface.at(2.0**18) == pytest.approx(1e-4 + 1e-8 * 2**9 + 1e-11 * 2**18, rel=0.01)
    assert surface.at(sizes[4]) == pytest.approx(5e-6, rel=0.05)
    assert surface.at(1.4 * 2**21) == pytest.approx(1e-4 + 1e-8 * (1.4 * 2**21) ** 0.5 + 1e-11 * 1.4 * 2**21, rel=0.02)


def test_a_stage_without_points_is_named() -> None:
    with pytest.raises(ValueError, match="no point between 1,024 and 4,096 bytes"):
        fit_piecewise("bytes", (1.0, 1024.0), 4096.0, np.array([2.0, 4.0]), np.array([1.0, 1.0]))


def test_what_a_coarse_clock_says_of_short_times_counts_little() -> None:
    sure = clock_tick_weight(np.array([1e-3, 20e-6, 2e-6]), 1e-6)
    assert sure[0] > 0.999
    assert 0.9 < sure[1] < 0.95
    assert sure[2] < 0.15
    x = np.array([[1.0], [2.0], [4.0], [8.0], [16.0]])
    off = {True: 0.0, False: 0.0}
    for slope in np.arange(1.3e-6, 2.5e-6, 0.1e-6):
        shown = np.round(slope * x[:, 0] * 1e6) / 1e6
        for aware in off:
            certainty = clock_tick_weight(shown, 1e-6) if aware else None
            surface = fit_surface(("x",), ((0, 4),), x, shown, certainty=certainty)
            off[aware] += abs(surface.at(16.0) / (16 * slope) - 1)
    assert off[True] < 0.7 * off[False]
