"""KV of ranks whose memory no other process reaches, a device's: each rank copies its part, when rank 0 tells it.

All ranks share some host memory. A chunk of a region lies there in the bytes that one rank would have, so to hash it
and to pass it on is rank 0's work alone. A slot is its keys, then its values; of both a rank has its heads.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dunlin.engine.device.kv_access import DeviceKvAccess
from dunlin.engine.device.staging import Staging
from dunlin.engine.ranks.part_copies import PartCopy, SlotRun
from dunlin.engine.ranks.shared_staging import SharedStaging
from dunlin.engine.transfer.slab import KvSlab
from dunlin.messages.types import Region

Tell = Callable[[PartCopy], None]
"""Tells the other ranks of a copy, which they begin at once."""


class PartCopier:
    """Copies one rank's part between its `kv`, by layer as `KvSlab` takes it, and the memory that all ranks share.
    `staging` reaches the KV.
    """

    def __init__(self, kv: Sequence[Tensor], staging: Staging, shared: SharedStaging) -> None:
        self._layers = [layer.view(torch.uint8).reshape(len(layer), -1) for layer in kv]
        self._staging = staging
        self._shared = shared

    def copy(self, told: PartCopy) -> None:
        """Copy, and let rank 0 know."""
        pieces = [self._layers[run.layer][run.start : run.start + run.count].reshape(-1) for run in told.runs]
        slots = sum(run.count for run in told.runs)
        part = self._shared.part(slots, told.runs[0].slot_bytes)
        staged = self._staging.buffer.numpy()[: part.size].reshape(part.shape)
        if told.to_kv:
            np.copyto(staged, part)
            self._staging.write(pieces)
        else:
            self._staging.read(pieces)
            np.copyto(part, staged)
        self._shared.say_copied()


class RankStaging:
    """Rank 0's `Staging` for the KV of all ranks; pieces are `SlotRun`s."""

    def __init__(self, own: PartCopier, shared: SharedStaging, tell: Tell) -> None:
        self.buffer = shared.buffer
        self._own = own
        self._shared = shared
        self._tell = tell

    def read(self, pieces: Sequence[SlotRun]) -> None:
        self._copy(PartCopy(tuple(pieces), to_kv=False))

    def write(self, pieces: Sequence[SlotRun]) -> None:
        self._copy(PartCopy(tuple(pieces), to_kv=True))

    def _copy(self, told: PartCopy) -> None:
        """:raises RankGone: another rank has ended."""
        self._tell(told)
        self._own.copy(told)
        self._shared.wait_for_copies()


class PartSlab(KvSlab):
    """`kv` is rank 0's, by layer as `KvSlab` takes it; all of `ranks` have the same `slots`."""

    def __init__(
        self, kv: Sequence[Tensor], slots: Sequence[int], ranks: int, staging: RankStaging, layout: int = 0
    ) -> None:
        slot_bytes = ranks * kv[0][0].numel() * kv[0].element_size()
        super().__init__(kv, slots, layout, DeviceKvAccess(staging, slot_bytes))
        self.slot_bytes = slot_bytes

    def pieces(self, region: Region, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[SlotRun]:
        for layer in range(region.layer_start, region.layer_stop):
            for start, length in zip(starts, lengths, strict=True):
                yield SlotRun(layer, start, length, self.slot_bytes)
