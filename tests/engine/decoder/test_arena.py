"""Granules are free or mapped, once; what lies in the memfd outlives the mapping."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.decoder.arena import GRANULE_BYTES, Arena, granules_for

ITEMS = GRANULE_BYTES // 4


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(os.memfd_create("arena"), 8)
    yield made
    made.close()
    os.close(made.fd)


def test_a_range_is_one_tensor_that_gets_longer(arena: Arena) -> None:
    first, second = arena.reserve(8), arena.reserve(8)
    for each in (first, second, first, second):
        each.grow(1)
    view = first.tensor(torch.float32)
    view[: 2 * ITEMS] = torch.arange(2.0 * ITEMS)
    second.tensor(torch.float32)[: 2 * ITEMS] = -1
    second.shrink(2)
    first.grow(2)
    assert first.granules == [0, 2, 1, 3]
    assert torch.equal(view[: 2 * ITEMS], torch.arange(2.0 * ITEMS)), "old content is intact at the old addresses"
    view[2 * ITEMS : 4 * ITEMS] = 5
    assert float(view[: 4 * ITEMS].sum()) == float(torch.arange(2.0 * ITEMS).sum()) + 5 * 2 * ITEMS
    arena.check_integrity()


def test_content_outlives_the_arena_that_wrote_it() -> None:
    fd = os.memfd_create("arena")
    for expected in (0.0, 7.0):
        arena = Arena(fd, 4)
        arena.reserve(1).grow(1)
        kept = arena.reserve(4)
        kept.grow(2)
        view = kept.tensor(torch.float32)[: 2 * ITEMS]
        assert float(view.max()) == float(view.min()) == expected
        view.fill_(7.0)
        arena.close()
    os.close(fd)


def test_there_is_no_more_than_there_is(arena: Arena) -> None:
    small, large = arena.reserve(2), arena.reserve(100)
    with pytest.raises(MemoryError, match="cannot grow by 3 granules"):
        small.grow(3)
    large.grow(7)
    with pytest.raises(MemoryError, match="2 granules wanted, 1 of 8 free"):
        small.grow(2)
    with pytest.raises(ValueError, match="cannot give back 8 of 7"):
        large.shrink(8)
    arena.check_integrity()


def test_a_granule_in_two_places_is_noticed(arena: Arena) -> None:
    held = arena.reserve(8)
    held.grow(2)
    held.granules.append(0)
    with pytest.raises(AssertionError, match="3 granules mapped and 6 free are not the 8"):
        arena.check_integrity()
    held.granules.pop()


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 4)), max_size=20))
def test_conservation_and_content_under_any_moves(moves: list[tuple[int, bool, int]]) -> None:
    arena = Arena(os.memfd_create("arena"), 8)
    ranges = [arena.reserve(8) for _ in range(3)]
    views = [each.tensor(torch.int32) for each in ranges]
    stamp = 0
    marks: list[list[int]] = [[], [], []]
    for which, grows, count in moves:
        held = ranges[which]
        if grows and count <= arena.free_granules:
            held.grow(count)
            for at in range(len(marks[which]), len(held.granules)):
                stamp += 1
                views[which][at * ITEMS : (at + 1) * ITEMS] = stamp
                marks[which].append(stamp)
        elif not grows and count <= len(held.granules):
            held.shrink(count)
            del marks[which][len(held.granules) :]
        arena.check_integrity()
        for view, expected in zip(views, marks, strict=True):
            assert [int(view[at * ITEMS]) for at in range(len(expected))] == expected
    arena.close()
    os.close(arena.fd)


def test_granules_for_bytes() -> None:
    assert [granules_for(size) for size in (0, 1, GRANULE_BYTES, GRANULE_BYTES + 1)] == [0, 1, 1, 2]
