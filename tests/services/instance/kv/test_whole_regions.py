"""Regions of some layers count together, and only where no layer is missing."""

from dunlin.messages.types import HostRegion, KeptRegion, Region
from services.instance.kv.whole_regions import group_whole

Shape = tuple[int, int, int, int]
"""(first layer, layer stop, start, stop)."""


def regions(*shapes: Shape, chain: bytes = b"c") -> list[KeptRegion]:
    return [KeptRegion(Region(*shape), HostRegion(i, 1, 0, 8), chain) for i, shape in enumerate(shapes)]


def handles(*shapes: Shape, layers: range = range(4)) -> tuple[list[list[int]], list[int]]:
    groups, useless = group_whole(regions(*shapes), layers)
    return [[kept.host.handle for kept in group] for group in groups], [kept.host.handle for kept in useless]


def test_a_region_of_all_layers_is_whole_by_itself() -> None:
    assert handles((0, 4, 8, 16), (0, 4, 0, 8)) == ([[1], [0]], [])


def test_of_those_with_one_start_the_longest_comes_first() -> None:
    assert handles((0, 4, 0, 8), (0, 4, 0, 16), (0, 4, 8, 16)) == ([[1], [0], [2]], [])


def test_the_first_layers_alone_are_not_the_whole() -> None:
    assert handles((0, 2, 0, 8)) == ([], [0])


def test_layers_from_two_regions_are_the_whole() -> None:
    assert handles((2, 4, 0, 8), (0, 2, 0, 8)) == ([[0, 1]], [])


def test_the_same_layer_twice_counts_once() -> None:
    assert handles((0, 2, 0, 8), (0, 4, 0, 8), (2, 4, 0, 8)) == ([[1]], [0, 2])


def test_layers_that_overlap_do_not_make_a_whole() -> None:
    assert handles((0, 3, 0, 8), (1, 4, 0, 8)) == ([], [0, 1])


def test_layers_that_the_engine_does_not_hold_are_of_no_use() -> None:
    assert handles((0, 4, 0, 8), (2, 4, 0, 8), layers=range(2, 4)) == ([[1]], [0])


def test_layers_of_different_spans_or_tokens_do_not_count_together() -> None:
    assert handles((0, 2, 0, 8), (2, 4, 0, 16)) == ([], [0, 1])
    ours, theirs = regions((0, 2, 0, 8)), regions((2, 4, 0, 8), chain=b"d")
    assert group_whole([*ours, *theirs], range(4)) == ([], [*ours, *theirs])
