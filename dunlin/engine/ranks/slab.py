"""The KV of all ranks as the bytes that one rank would have: rank 0 copies regions for all of them.

A slot of one rank is its heads' keys, then their values; a whole slot is all ranks' keys, then all ranks' values.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from torch import Tensor

from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.region_copy import PIECE_BYTES, ByteCursor, Guard
from dunlin.engine.transfer.slab import HOST_KV, KvSlab
from dunlin.kv.region_identity import signed_digest
from dunlin.messages.types import Region

Run = Sequence[Bytes]
"""The same slots at each rank: `[slot, keys and values, bytes]`."""


class RankSlab(KvSlab):
    """`kv[rank]` by layer, as `KvSlab` takes it of one rank; all ranks have the same `slots`."""

    def __init__(self, kv: Sequence[Sequence[Tensor]], slots: Sequence[int], layout: int = 0) -> None:
        super().__init__(kv[0], slots, layout, RankKvAccess())
        own_bytes, self.slot_bytes = self.slot_bytes, self.slot_bytes * len(kv)
        self._by_rank = [
            [HOST_KV.slots(layer, own_bytes).reshape(len(layer), 2, -1) for layer in layers] for layers in kv
        ]

    def pieces(self, region: Region, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Run]:
        for layer in range(region.layer_start, region.layer_stop):
            for start, length in zip(starts, lengths, strict=True):
                yield [layers[layer][start : start + length] for layers in self._by_rank]


class RankKvAccess:
    """See `KvAccess`."""

    def slots(self, layer: Tensor, slot_bytes: int) -> Bytes:
        return HOST_KV.slots(layer, slot_bytes)

    def copy(
        self, identity: bytes, size_bytes: int, own: Iterator[Any], other: Iterator[Bytes] | None, to_own: bool,
        guard: Guard,
    ) -> "RankCopy":  # fmt: skip
        return RankCopy(identity, size_bytes, own, other, to_own, guard)


class RankCopy:
    """See `RegionCopy`, whose bytes and checksum it has. Copies whole slots: of a smaller chunk, one."""

    def __init__(
        self, identity: bytes, size_bytes: int, own: Iterator[Run], other: Iterator[Bytes] | None, to_own: bool,
        guard: Guard,
    ) -> None:  # fmt: skip
        self.left_bytes = size_bytes
        self._own = own
        self._run: Run = ()
        self._other = None if other is None else ByteCursor(other)
        self._to_own = to_own
        self._guard = guard
        self._hasher = xxhash.xxh3_64(identity)

    @property
    def checksum(self) -> int:
        """The hash of the identity and the bytes so far, signed."""
        return signed_digest(self._hasher.intdigest())

    def copy_chunk(self, most_bytes: int) -> int:
        """Copy about so many bytes; returns how many, which is 0 only at the end.

        :raises TransferError: the other side may not be touched any more.
        """
        before, stop = self.left_bytes, max(self.left_bytes - most_bytes, 0)
        with self._guard():
            while self.left_bytes > stop:
                self.left_bytes -= self._copy_slots(min(self.left_bytes - stop, PIECE_BYTES))
        return before - self.left_bytes

    def _copy_slots(self, most_bytes: int) -> int:
        if not self._run or not len(self._run[0]):
            self._run = next(self._own)
        slot_bytes = sum(each[0].size for each in self._run)
        count = max(most_bytes // slot_bytes, 1)
        slots, self._run = [each[:count] for each in self._run], [each[count:] for each in self._run]
        if self._to_own:
            whole = self._read(len(slots[0]) * slot_bytes)
            for own, part in zip(slots, np.split(whole.reshape(len(slots[0]), 2, -1), len(slots), axis=2), strict=True):
                np.copyto(own, part)
        else:
            whole = np.concatenate(slots, axis=2).reshape(-1)
            self._write(whole)
        self._hasher.update(whole.data)
        return len(whole)

    def _read(self, count: int) -> Bytes:
        """The next bytes of the other side, copied before they are hashed."""
        assert self._other is not None
        whole: Bytes = np.concatenate(list(self._other.take(count)))
        return whole

    def _write(self, whole: Bytes) -> None:
        for piece in () if self._other is None else self._other.take(len(whole)):
            np.copyto(piece, whole[: len(piece)])
            whole = whole[len(piece) :]
