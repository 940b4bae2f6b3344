"""An engine's own KV as bytes: the slots of each layer, and which of them there are in the layout in force."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.extents import KvKind, check_extents
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.region_copy import ChunkedCopy, Guard, RegionCopy
from dunlin.messages.types import Region


class KvAccess(Protocol):
    """How transfers reach KV: in host memory, or in a device's."""

    def slots(self, layer: Tensor, slot_bytes: int) -> Any:
        """A layer's KV, `[slot, bytes]`, as `copy` takes parts of it."""
        ...

    def copy(
        self, identity: bytes, size_bytes: int, own: Iterator[Any], other: Iterator[Bytes] | None, to_own: bool,
        guard: Guard,
    ) -> ChunkedCopy:  # fmt: skip
        """See `RegionCopy`."""
        ...


class HostKvAccess:
    """KV in host memory."""

    def slots(self, layer: Tensor, slot_bytes: int) -> Bytes:
        found: Bytes = layer.view(torch.uint8).numpy().reshape(len(layer), slot_bytes)
        return found

    def copy(
        self, identity: bytes, size_bytes: int, own: Iterator[Any], other: Iterator[Bytes] | None, to_own: bool,
        guard: Guard,
    ) -> RegionCopy:  # fmt: skip
        return RegionCopy(identity, size_bytes, own, other, to_own=to_own, guard=guard)


HOST_KV = HostKvAccess()


class KvSlab:
    """The slots of every layer. A layer that is neither held nor retained has none, and is never touched."""

    def __init__(self, kv: Sequence[Tensor], slots: Sequence[int], layout: int = 0, access: KvAccess = HOST_KV) -> None:
        """
        Args:
            kv: by layer, `[slot, 2, kv_heads, head_dim]`; views whose first `slots[layer]` slots may be touched.
            slots: by layer, 0 for one without KV.
            layout: the version of the layers held.
            access: how transfers reach it.
        """
        self.dtype = str(kv[0].dtype).removeprefix("torch.")
        self.layout = layout
        self.slots = tuple(slots)
        self.slot_bytes = kv[0][0].numel() * kv[0].element_size()
        self.access = access
        self._layers = [access.slots(layer, self.slot_bytes) for layer in kv]

    @property
    def kind(self) -> KvKind:
        """What its slots hold."""
        return KvKind(self.dtype, self.slot_bytes)

    def change_layout(self, layout: int, slots: Sequence[int]) -> None:
        """From now on the layers have so many slots; those that stay keep their content and their address."""
        self.layout, self.slots = layout, tuple(slots)

    def size_bytes(self, region: Region) -> int:
        """The size of a region's KV, in bytes."""
        return (region.layer_stop - region.layer_start) * (region.stop - region.start) * self.slot_bytes

    def check(self, region: Region, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """:raises TransferError: a layer or a slot is not here, or there are not as many slots as tokens."""
        if not 0 <= region.layer_start < region.layer_stop <= len(self.slots):
            raise TransferError(f"layers {region.layer_start} to {region.layer_stop} are not held here")
        least = min(self.slots[region.layer_start : region.layer_stop])
        if not least:
            raise TransferError(f"layers {region.layer_start} to {region.layer_stop} are not all held here")
        check_extents(starts, lengths, least)
        tokens = sum(lengths)
        if tokens != region.stop - region.start:
            raise TransferError(f"slots for {tokens} tokens are named, the region has {region.stop - region.start}")

    def pieces(self, region: Region, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Any]:
        """The region's KV, one layer after another, in order of position. Checked before."""
        for layer in range(region.layer_start, region.layer_stop):
            slots = self._layers[layer]
            for start, length in zip(starts, lengths, strict=True):
                yield slots[start : start + length].reshape(-1)
