"""Surfaces over logarithms: exact on the grid and for powers, in proportion beyond, refused where they do not fit."""

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.surface import Surface, linear_weights

# a * b², on the grid a = 1, 4 and b = 2, 8, 16.
PRODUCT = Surface(("a", "b"), ((0.0, 2.0), (1.0, 3.0, 4.0)), (2.0, 6.0, 8.0, 4.0, 8.0, 10.0))


@pytest.mark.parametrize(("a", "b"), [(1, 2), (4, 16), (2, 4), (3, 11)])
def test_a_product_of_powers_is_met_between_the_knots(a: float, b: float) -> None:
    assert PRODUCT.at(a, b) == pytest.approx(a * b * b)


@pytest.mark.parametrize(
    ("a", "b", "value"), [(8, 16, 2 * 4 * 256), (4, 64, 4 * 4 * 256), (8, 64, 8 * 4 * 256), (0.01, 16, 256), (1, 1, 4)]
)
def test_beyond_the_grid_time_is_in_proportion_and_below_it_the_edges(a: float, b: float, value: float) -> None:
    assert PRODUCT.at(a, b) == pytest.approx(value)


def test_the_last_knot_of_an_axis_is_found_by_name() -> None:
    assert (PRODUCT.last_knot("a"), PRODUCT.last_knot("b")) == (4.0, 16.0)
    with pytest.raises(ValueError, match="tuple"):
        PRODUCT.last_knot("c")


def test_values_are_read_with_the_last_axis_fastest() -> None:
    steps = Surface(("a", "b"), ((0.0, 1.0), (0.0, 1.0)), (0.0, 1.0, 2.0, 3.0))
    assert [steps.at(a, b) for a in (1, 2) for b in (1, 2)] == [1.0, 2.0, 4.0, 8.0]


def test_an_axis_with_one_knot_is_its_edge() -> None:
    flat = Surface(("a",), ((3.0,),), (log2(5.0),))
    assert flat.at(0.001) == flat.at(8) == pytest.approx(5.0)
    assert flat.at(24) == pytest.approx(15.0)


@pytest.mark.parametrize("coordinates", [(), (1.0,), (1.0, 2.0, 3.0), (0.0, 1.0), (1.0, -2.0)])
def test_coordinates_must_be_as_many_as_the_axes_and_positive(coordinates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="needs positive a, b"):
        PRODUCT.at(*coordinates)


@pytest.mark.parametrize(
    ("axes", "knots", "values", "complaint"),
    [
        (("a",), ((0.0,), (1.0,)), (1.0,), "one list of knots per axis"),
        (("a",), ((0.0, 1.0),), (1.0,), "a value per grid point"),
        (("a",), ((1.0, 1.0),), (1.0, 2.0), "knots of axis 'a' must rise strictly"),
        (("a", "b"), ((0.0,), (2.0, 1.0)), (1.0, 2.0), "knots of axis 'b' must rise strictly"),
        (("a",), ((),), (), "knots of axis 'a' must rise strictly"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    axes: tuple[str, ...], knots: tuple[tuple[float, ...], ...], values: tuple[float, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Surface(axes, knots, values)


def test_a_surface_survives_json_to_five_digits() -> None:
    assert Surface.from_json(PRODUCT.as_json()) == PRODUCT
    odd = Surface(("a",), ((0.0,),), (1.23456789,))
    assert odd.as_json()["log2_values"] == [1.23457]
    with pytest.raises(KeyError):
        Surface.from_json({"axes": ["a"], "knots": [[0.0]]})


@given(st.floats(-5.0, 10.0))
def test_weights_sum_to_one_and_name_the_point(x: float) -> None:
    axis = (0.0, 1.0, 3.0)
    weights = linear_weights(axis, x)
    assert sum(part for _, part in weights) == pytest.approx(1.0)
    assert sum(part * axis[knot] for knot, part in weights) == pytest.approx(x)


def test_a_knot_has_all_the_weight_of_itself() -> None:
    assert linear_weights((0.0, 1.0, 3.0), 1.0) == [(1, 1.0), (2, 0.0)]
    assert linear_weights((0.0, 1.0, 3.0), 3.0) == [(1, 0.0), (2, 1.0)]
