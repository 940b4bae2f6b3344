"""Regions of all ranks' KV have the bytes and the checksum that one rank's would have, in chunks of any size."""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from dunlin.engine.device.staging import HostStaging
from dunlin.engine.ranks.pace import word_count
from dunlin.engine.ranks.part_copies import PartCopy, SlotRun
from dunlin.engine.ranks.part_slab import PartCopier, PartSlab, RankStaging
from dunlin.engine.ranks.shared_staging import SharedStaging
from dunlin.engine.ranks.shared_words import SharedWords
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


def mapped_slab(parts: Sequence[Sequence[Tensor]]) -> KvSlab:
    """Rank 0 reaches the memory of all."""
    return RankSlab(parts, [SLOTS] * 3)


def told_slab(parts: Sequence[Sequence[Tensor]]) -> KvSlab:
    """Each rank copies its part, the others here when rank 0 tells them. Their memory holds less than a region."""
    fd, ranks = os.memfd_create("ranks"), len(parts)
    copiers, shared = [], []
    for rank, kv in enumerate(parts):
        words = SharedWords(fd, word_count(ranks))
        shared.append(SharedStaging(fd, words, rank, ranks, size_bytes=1500))
        copiers.append(PartCopier(kv, HostStaging(1500), shared[-1]))

    def tell(copy: PartCopy) -> None:
        for other in copiers[1:]:
            other.copy(PartCopy.decode(copy.encode()))

    return PartSlab(parts[0], [SLOTS] * 3, ranks, RankStaging(copiers[0], shared[0], tell))


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
@pytest.mark.parametrize("make", [mapped_slab, told_slab])
def test_copies_are_those_of_one_rank(make: Callable[..., KvSlab], chunk: int) -> None:
    kv = whole_kv()
    one, two = KvSlab(kv, [SLOTS] * 3), make(parts_of(kv))
    assert (two.slot_bytes, two.kind) == (one.slot_bytes, one.kind)
    rooms = [np.zeros(one.size_bytes(REGION), dtype=np.uint8) for _ in range(2)]
    first = copied(one, [rooms[0]], False, 1 << 20)
    assert copied(two, [rooms[1][:100], rooms[1][100:]], False, chunk) == first
    assert np.array_equal(rooms[0], rooms[1])

    back = parts_of([torch.zeros_like(layer) for layer in kv])
    assert copied(make(back), [rooms[0][:77], rooms[0][77:]], True, chunk) == first
    for rank, layers in enumerate(parts_of(kv)):
        for number, layer in enumerate(layers):
            expected = torch.zeros_like(layer)
            if number in (1, 2):
                for start, length in zip(STARTS, LENGTHS, strict=True):
                    expected[start : start + length] = layer[start : start + length]
            assert torch.equal(back[rank][number], expected)


def test_a_run_of_slots_is_cut_between_them() -> None:
    run = SlotRun(2, 5, 4, 10)
    assert (len(run), run[:20], run[20:]) == (40, SlotRun(2, 5, 2, 10), SlotRun(2, 7, 2, 10))
    assert run[:99] == run
    with pytest.raises(AssertionError):
        run[5:]
