"""The slab as bytes: layers one after another, and only the slots that there are."""

import pytest
import torch

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.extents import check_extents
from dunlin.engine.transfer.slab import KvSlab
from dunlin.messages.types import Region


def make_slab(slots: tuple[int, ...] = (16, 8, 0)) -> tuple[KvSlab, list[torch.Tensor]]:
    kv = [torch.arange(128, dtype=torch.float32).view(16, 2, 1, 4) + 1000 * layer for layer in range(3)]
    return KvSlab(kv, slots, layout=4), kv


def test_pieces_follow_one_another_by_layer_and_position() -> None:
    slab, kv = make_slab()
    found = b"".join(piece.tobytes() for piece in slab.pieces(Region(0, 2, 10, 13), [5, 1], [2, 1]))
    assert found == b"".join(layer[[5, 6, 1]].numpy().tobytes() for layer in kv[:2])
    assert (slab.size_bytes(Region(0, 2, 10, 13)), slab.dtype, slab.layout) == (len(found), "float32", 4)


@pytest.mark.parametrize(
    ("region", "start", "length", "detail"),
    [
        (Region(0, 4, 0, 2), 0, 2, "layers 0 to 4 are not held"),
        (Region(1, 1, 0, 2), 0, 2, "layers 1 to 1 are not held"),
        (Region(-1, 1, 0, 2), 0, 2, "layers -1 to 1 are not held"),
        (Region(1, 3, 0, 2), 0, 2, "layers 1 to 3 are not all held"),
        (Region(0, 2, 0, 2), 7, 2, "extent of 2 slots from 7 lies outside the slab of 8"),
        (Region(0, 1, 0, 3), 7, 2, "slots for 2 tokens are named, the region has 3"),
    ],
)
def test_what_is_not_here_is_refused(region: Region, start: int, length: int, detail: str) -> None:
    slab, _ = make_slab()
    with pytest.raises(TransferError, match=detail):
        slab.check(region, [start], [length])
    slab.check(Region(0, 1, 0, 2), [7], [2])


def test_a_change_of_layout_brings_and_takes_slots() -> None:
    slab, _ = make_slab()
    slab.change_layout(5, (16, 0, 8))
    slab.check(Region(2, 3, 0, 2), [6], [2])
    with pytest.raises(TransferError, match="not all held"):
        slab.check(Region(1, 2, 0, 2), [0], [2])
    assert slab.layout == 5


@pytest.mark.parametrize(("starts", "lengths"), [([0], [0]), ([-1], [2]), ([15], [2]), ([0, 16], [1, 1])])
def test_an_extent_that_is_empty_or_outside_the_slab_is_refused(starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(TransferError, match="lies outside the slab of 16"):
        check_extents(starts, lengths, 16)
    check_extents([0, 15], [16, 1], 16)


def test_extent_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(TransferError, match="2 extents begin and 1 have a length"):
        check_extents([0, 1], [1], 16)
