"""Transfers between a device's KV and host memory: the same bytes and checksums as within host memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from dunlin.engine.device.kv_access import DeviceKvAccess
from dunlin.engine.device.staging import HostStaging
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.slab import HOST_KV, KvAccess, KvSlab
from dunlin.messages.types import Region

SLOTS = 40
REGION = Region(0, 3, 0, 17)
STARTS, LENGTHS = [4, 30, 12], [9, 3, 5]


def make_kv(seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(SLOTS, 2, 2, 8, generator=random).bfloat16() for _ in range(3)]


def slab(kv: Sequence[Tensor], access: KvAccess) -> KvSlab:
    return KvSlab(kv, [SLOTS] * 3, access=access)


def copy(made: KvSlab, other: Bytes, to_own: bool, chunk: int) -> tuple[int, list[int]]:
    """(checksum, sizes of the chunks)."""
    size = made.size_bytes(REGION)
    moved = made.access.copy(b"name", size, made.pieces(REGION, STARTS, LENGTHS), iter((other,)), to_own, nullcontext)
    sizes = []
    while count := moved.copy_chunk(chunk):
        sizes.append(count)
    assert moved.left_bytes == 0
    return moved.checksum, sizes


@pytest.mark.parametrize("chunk", [100, 1 << 20])
def test_it_writes_out_what_host_memory_would(chunk: int) -> None:
    kv = make_kv(1)
    sizes = KvSlab(kv, [SLOTS] * 3).size_bytes(REGION)
    ours, theirs = (np.zeros(sizes, dtype=np.uint8) for _ in range(2))
    found = copy(slab(kv, DeviceKvAccess(HostStaging(1 << 10))), ours, False, chunk)
    wanted = copy(slab(kv, HOST_KV), theirs, False, chunk)
    assert found[0] == wanted[0]
    assert np.array_equal(ours, theirs)
    assert max(found[1]) == min(chunk, 1 << 10), "a chunk fits into the staging buffer"


def test_it_reads_in_what_host_memory_would() -> None:
    ours, theirs = make_kv(2), make_kv(2)
    made = slab(ours, DeviceKvAccess(HostStaging(300)))
    other = np.random.default_rng(5).integers(0, 256, made.size_bytes(REGION), dtype=np.uint8)
    assert copy(made, other, True, 256)[0] == copy(slab(theirs, HOST_KV), other, True, 256)[0]
    assert all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(ours, theirs, strict=True))


def test_without_another_side_it_hashes() -> None:
    kv = make_kv(3)
    sums = []
    for access in (DeviceKvAccess(HostStaging()), HOST_KV):
        made = slab(kv, access)
        size = made.size_bytes(REGION)
        moved = made.access.copy(b"", size, made.pieces(REGION, STARTS, LENGTHS), None, False, nullcontext)
        while moved.copy_chunk(77):
            pass
        sums.append(moved.checksum)
    assert sums[0] == sums[1]


def test_nothing_is_copied_once_the_other_side_may_not_be_touched() -> None:
    made = slab(make_kv(4), DeviceKvAccess(HostStaging()))
    chunks = 2

    @contextmanager
    def guard() -> Iterator[None]:
        nonlocal chunks
        chunks -= 1
        if chunks < 0:
            raise TransferError("no more")
        yield

    size = made.size_bytes(REGION)
    other = np.zeros(size, dtype=np.uint8)
    moved = made.access.copy(b"", size, made.pieces(REGION, STARTS, LENGTHS), iter((other,)), False, guard)
    moved.copy_chunk(30)
    moved.copy_chunk(30)
    with pytest.raises(TransferError, match="no more"):
        moved.copy_chunk(30)
    assert (moved.left_bytes, int(other[60:].sum())) == (size - 60, 0)
