"""Transfers of KV that lies in a device's memory: chunk by chunk through a staging buffer, hashed there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from dunlin.engine.device.staging import Staging
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.region_copy import ByteCursor, Guard
from dunlin.kv.region_identity import signed_digest


class DeviceKvAccess:
    """See `KvAccess`. A chunk has a multiple of `unit_bytes`."""

    def __init__(self, staging: Staging, unit_bytes: int = 1) -> None:
        self._staging = staging
        self._unit_bytes = unit_bytes

    def slots(self, layer: Tensor, slot_bytes: int) -> Tensor:
        return layer.view(torch.uint8).reshape(len(layer), slot_bytes)

    def copy(
        self, identity: bytes, size_bytes: int, own: Iterator[Any], other: Iterator[Bytes] | None, to_own: bool,
        guard: Guard,
    ) -> "DeviceRegionCopy":  # fmt: skip
        return DeviceRegionCopy(self._staging, identity, size_bytes, own, other, to_own, guard, self._unit_bytes)


class DeviceRegionCopy:
    """As `RegionCopy`, where the own pieces are what `staging` copies: of a device, tensors `[bytes]` uint8. Copies
    multiples of `unit_bytes`: of a smaller chunk, one.
    """

    def __init__(
        self,
        staging: Staging,
        identity: bytes,
        size_bytes: int,
        own: Iterator[Any],
        other: Iterator[Bytes] | None,
        to_own: bool,
        guard: Guard,
        unit_bytes: int = 1,
    ) -> None:
        self.left_bytes = size_bytes
        self._staging = staging
        self._host: Bytes = staging.buffer.numpy()
        self._own = ByteCursor(own)
        self._other = None if other is None else ByteCursor(other)
        self._to_own = to_own
        self._guard = guard
        self._hasher = xxhash.xxh3_64(identity)
        self._unit_bytes = unit_bytes

    @property
    def checksum(self) -> int:
        """The hash of the identity and the bytes so far, signed."""
        return signed_digest(self._hasher.intdigest())

    def copy_chunk(self, most_bytes: int) -> int:
        """See `RegionCopy.copy_chunk`."""
        units = min(most_bytes, len(self._host)) // self._unit_bytes
        count = min(max(units, 1) * self._unit_bytes, self.left_bytes)
        if not count:
            return 0
        with self._guard():
            pieces = list(self._own.take(count))
            if self._to_own:
                self._copy_other(count)
                self._staging.write(pieces)
            else:
                self._staging.read(pieces)
                self._copy_other(count)
        self._hasher.update(self._host[:count].data)
        self.left_bytes -= count
        return count

    def _copy_other(self, count: int) -> None:
        """Between the staging buffer and the other side."""
        if self._other is None:
            return
        at = 0
        for piece in self._other.take(count):
            staged = self._host[at : at + len(piece)]
            np.copyto(*((staged, piece) if self._to_own else (piece, staged)))
            at += len(piece)
