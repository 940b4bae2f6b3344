"""Engines reduced to their transfers: small slabs, a host tier, and peers in the same process."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dunlin.effects import Address
from dunlin.engine.transfer.copy_planner import CopyPlanner
from dunlin.engine.transfer.host_tier import HostMapping
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_arenas import PeerArenas
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transfer_queue import EndedTransfer, TransferLimits, TransferQueue
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import MapHost, Transfer
from dunlin.messages.types import HostRegion, Region, TransferKind, i64
from tests.engine.build import SteppingClock

LAYERS, SLOTS, SLOT_BYTES = 2, 16, 32
LAYER_BYTES = SLOTS * SLOT_BYTES


class Engine:
    """Two layers of 16 slots in a memory file, one kv head of 4 dimensions: 32 bytes a token and layer.

    The second layer lies before the first in the file, cut into two runs that are not in order.
    """

    def __init__(
        self,
        name: str = "a",
        seed: int = 0,
        arena_fd: int = -1,
        page_fd: int = -1,
        room_bytes: int = 1 << 16,
        **limits: Any,
    ) -> None:
        self.address = Address("engine", name)
        self.arena_fd = os.memfd_create("arena") if arena_fd < 0 else arena_fd
        self.page_fd = os.memfd_create("page") if page_fd < 0 else page_fd
        os.ftruncate(self.arena_fd, 4 * LAYER_BYTES)
        half = LAYER_BYTES // 2
        self.runs = {0: [(2 * LAYER_BYTES, LAYER_BYTES)], 1: [(LAYER_BYTES, half), (0, half)]}
        generator = torch.Generator().manual_seed(seed)
        self.kv = [torch.randn((SLOTS, 2, 1, 4), generator=generator) for _ in range(LAYERS)]
        self.slab = KvSlab(self.kv, [SLOTS] * LAYERS)
        self.rooms = TransitRooms(4, room_bytes)
        self.tier = HostMapping()
        self.peers = PeerArenas()
        self.access = PeerAccess(self.page_fd, self.rooms)
        self.access.publish(self.arena_fd, self.slab, self.runs)
        planner = CopyPlanner(self.slab, self.rooms, self.tier, self.peers)
        self.queue = TransferQueue(planner, SteppingClock(), TransferLimits(**limits))

    def arena_kv(self, layer: int) -> bytes:
        """The slots of a layer as they lie in the memory file."""
        return b"".join(os.pread(self.arena_fd, length, offset) for offset, length in self.runs[layer])

    def read_arena(self) -> None:
        """Take over what peers wrote: these tests' slabs do not lie in their memory file."""
        for layer, kept in enumerate(self.kv):
            kept.copy_(torch.frombuffer(bytearray(self.arena_kv(layer)), dtype=torch.float32).view(kept.shape))

    def meet(self, other: "Engine") -> None:
        self.peers.meet(other.address, other.access.agent)

    def map_tier(self, path: Path, size: int = 1024) -> None:
        path.write_bytes(bytes(size))
        self.tier.map(MapHost(str(path), size, 1))

    def finish(self) -> list[EndedTransfer]:
        """Work until nothing can go on."""
        ended: list[EndedTransfer] = []
        while self.queue.has_work:
            ended += self.queue.work_idle()
        return ended


def slots_of(kv: Sequence[Tensor], slots: Sequence[int]) -> bytes:
    """The bytes of a region that lies in these slots of every layer."""
    return b"".join(layer[list(slots)].numpy().tobytes() for layer in kv)


def host_transfer(ticket: int, kind: TransferKind, checksum: int = 0, **overrides: Any) -> Transfer:
    """Three tokens in slots 5, 6 and 1, at byte 64 of the tier."""
    values = {"extent_start": i64([5, 1]), "extent_length": i64([2, 1]), "region": Region(0, 2, 0, 3), **overrides}
    return Transfer(ticket=ticket, kind=kind, sequence=1, host=HostRegion(1, 1, 64, 192, checksum), **values)


def peer_transfer(ticket: int, peer: Address, **overrides: Any) -> Transfer:
    """Three tokens in slots 5, 6 and 1, to the peer's slots 3, 7, and 8."""
    values = {
        "kind": TransferKind.SLAB_TO_PEER,
        "extent_start": i64([5, 1]),
        "extent_length": i64([2, 1]),
        "peer_extent_start": i64([3, 7]),
        "peer_extent_length": i64([1, 2]),
        "region": Region(0, 2, 0, 3),
        **overrides,
    }
    return Transfer(ticket=ticket, sequence=1, peer=peer, **values)
