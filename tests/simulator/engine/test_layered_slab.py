"""A slab's contents layer by layer."""

from simulator.engine.layered_slab import MIXED, LayeredSlab

LOW, HIGH, MIDDLE = frozenset({0, 1}), frozenset({2, 3}), frozenset({1, 2})


def test_layers_part_where_some_are_written_and_a_reader_of_all_notices() -> None:
    slab = LayeredSlab(4, 4)
    slab.write([0, 1], [7, 8])
    slab.write([1], [9], LOW)
    assert slab.read([0, 1]) == [7, MIXED]
    assert (slab.read([0, 1], LOW), slab.read([0, 1], HIGH)) == ([7, 9], [7, 8])
    assert slab.read([1], MIDDLE) == [MIXED]
    slab.write([1], [9], HIGH)
    assert slab.read([0, 1]) == [7, 9]


def test_a_shorter_content_leaves_the_rest_and_other_layers_as_they_were() -> None:
    slab = LayeredSlab(4, 4)
    slab.write([0, 1], [7, 8])
    slab.write([0, 1], [5], MIDDLE)
    assert (slab.read([0, 1], MIDDLE), slab.read([0, 1], frozenset({0, 3}))) == ([5, 8], [7, 8])
    slab.fill(None, MIDDLE)
    assert (slab.read([0, 1], MIDDLE), slab.read([0, 1], frozenset({0, 3}))) == ([None, None], [7, 8])


def test_a_shrunk_slab_loses_its_tail_in_all_layers() -> None:
    slab = LayeredSlab(4, 2)
    slab.write([3], [7])
    slab.write([3], [8], frozenset({0}))
    slab.resize(3)
    slab.resize(5)
    assert (len(slab), slab.read([3, 4])) == (5, [None, None])
