"""Copies in chunks: whatever their size, the bytes and the checksum are the same."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.region_copy import PIECE_BYTES, RegionCopy
from dunlin.kv.region_identity import signed_digest

SIZE = 3 * PIECE_BYTES + 77


def cut(memory: Bytes, draw: random.Random) -> Iterator[Bytes]:
    at = 0
    while at < len(memory):
        stop = min(at + draw.choice((1, 1000, 2 * PIECE_BYTES)), len(memory))
        yield memory[at:stop]
        at = stop


@pytest.mark.parametrize("to_own", [False, True])
@pytest.mark.parametrize("chunk", [1000, PIECE_BYTES, PIECE_BYTES + 1, 10 * SIZE])
def test_every_way_to_cut_gives_the_same_bytes_and_checksum(to_own: bool, chunk: int) -> None:
    draw = random.Random(chunk)
    own, other = (np.frombuffer(bytearray(draw.randbytes(SIZE)), np.uint8) for _ in range(2))
    wanted = (other if to_own else own).tobytes()
    copy = RegionCopy(b"identity", SIZE, cut(own, draw), cut(other, draw), to_own=to_own)
    moved = []
    while copied := copy.copy_chunk(chunk):
        moved.append(copied)
    assert own.tobytes() == other.tobytes() == wanted
    assert copy.checksum == signed_digest(xxhash.xxh3_64_intdigest(b"identity" + wanted))
    assert (sum(moved), max(moved), copy.left_bytes) == (SIZE, min(chunk, SIZE), 0)


def test_without_another_side_the_own_bytes_are_hashed() -> None:
    own = np.arange(200, dtype=np.uint8)
    copy = RegionCopy(b"", 200, iter((own,)))
    assert (copy.copy_chunk(120), copy.copy_chunk(120), copy.copy_chunk(120)) == (120, 80, 0)
    assert copy.checksum == signed_digest(xxhash.xxh3_64_intdigest(own.tobytes()))


def test_a_guard_that_refuses_stops_the_copy_before_the_next_chunk() -> None:
    own, other = np.ones(100, np.uint8), np.zeros(100, np.uint8)
    chunks = []

    @contextlib.contextmanager
    def guard() -> Iterator[None]:
        chunks.append(1)
        if len(chunks) > 2:
            raise TransferError("no more")
        yield

    copy = RegionCopy(b"", 100, iter((own,)), iter((other,)), guard=guard)
    copy.copy_chunk(30)
    copy.copy_chunk(30)
    with pytest.raises(TransferError, match="no more"):
        copy.copy_chunk(30)
    assert (int(other.sum()), copy.left_bytes) == (60, 40)
