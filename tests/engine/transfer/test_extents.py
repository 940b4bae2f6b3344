"""Runs of slots: parts of them, and what is no run."""

import random

import pytest

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.extents import check_extents, part_of


def slots_of(starts: list[int], lengths: list[int]) -> list[int]:
    return [slot for start, length in zip(starts, lengths, strict=True) for slot in range(start, start + length)]


@pytest.mark.parametrize("seed", range(5))
def test_a_part_has_the_slots_between_its_ends(seed: int) -> None:
    draw = random.Random(seed)
    starts = draw.sample(range(0, 1000, 20), 6)
    lengths = [draw.randrange(1, 20) for _ in starts]
    whole = slots_of(starts, lengths)
    for first in range(len(whole) + 1):
        for stop in range(first, len(whole) + 1):
            part = part_of(starts, lengths, first, stop)
            assert slots_of(*part) == whole[first:stop]
            assert all(length > 0 for length in part[1])


@pytest.mark.parametrize(("starts", "lengths"), [([0], [9]), ([-1], [2]), ([3], [0]), ([2, 3], [1]), ([8], [1])])
def test_what_is_no_run_of_the_slab_is_refused(starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(TransferError):
        check_extents(starts, lengths, 8)
    check_extents([0, 7], [7, 1], 8)
