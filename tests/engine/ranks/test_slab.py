"""Regions of all ranks' KV have the bytes and the checksum that one rank's would have, in chunks of any size."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from dunlin.engine.ranks.slab import RankSlab
from dunlin.engine.transfer.slab import KvSlab
from dunlin.messages.types import Region

SLOTS, HEADS, WIDTH = 24, 4, 8
REGION = Region(1, 3, 0, 10)
STARTS, LENGTHS = [3, 15], [4, 6]


def whole_kv() -> list[Tensor]:
    return [torch.randn(SLOTS, 2, HEADS, WIDTH, generator=torch.Generator().manual_seed(layer)) for layer in range(3)]


def parts_of(kv: list[Tensor]) -> list[list[Tensor]]:
    own = HEADS // 2
    return [[layer[:, :, rank * own : (rank + 1) * own].contiguous() for layer in kv] for rank in range(2)]


def copied(slab: KvSlab, host: list[np.ndarray], to_own: bool, chunk: int) -> int:
    size = slab.size_bytes(REGION)
    pieces = slab.pieces(REGION, STARTS, LENGTHS)
    copy = slab.access.copy(b"identity", size, pieces, iter(host), to_own, nullcontext)
    moved = 0
    while copy.left_bytes:
        moved += copy.copy_chunk(chunk)
    assert moved == size
    assert copy.copy_chunk(chunk) == 0
    return copy.checksum


@pytest.mark.parametrize("chunk", [1, 300, 1 << 20])
def test_copies_are_those_of_one_rank(chunk: int) -> None:
    kv = whole_kv()
    one, two = KvSlab(kv, [SLOTS] * 3), RankSlab(parts_of(kv), [SLOTS] * 3)
    assert (two.slot_bytes, two.kind) == (one.slot_bytes, one.kind)
    rooms = [np.zeros(one.size_bytes(REGION), dtype=np.uint8) for _ in range(2)]
    first = copied(one, [rooms[0]], False, 1 << 20)
    assert copied(two, [rooms[1][:100], rooms[1][100:]], False, chunk) == first
    assert np.array_equal(rooms[0], rooms[1])

    back = parts_of([torch.zeros_like(layer) for layer in kv])
    assert copied(RankSlab(back, [SLOTS] * 3), [rooms[0][:77], rooms[0][77:]], True, chunk) == first
    for rank, layers in enumerate(parts_of(kv)):
        for number, layer in enumerate(layers):
            expected = torch.zeros_like(layer)
            if number in (1, 2):
                for start, length in zip(STARTS, LENGTHS, strict=True):
                    expected[start : start + length] = layer[start : start + length]
            assert torch.equal(back[rank][number], expected)
