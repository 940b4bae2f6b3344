"""What a transfer copies from where to where, once everything that it names has been checked."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes, HostMapping
from dunlin.engine.transfer.peer_arenas import PeerArenas
from dunlin.engine.transfer.region_copy import ChunkedCopy
from dunlin.engine.transfer.slab import HOST_KV, KvSlab
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.kv.region_identity import region_identity
from dunlin.messages.engine import Transfer
from dunlin.messages.types import Payload, TransferKind


class CopyPlanner:
    """Knows the two sides of every kind of transfer: the own slab and rooms, and the host tier or a peer's memory."""

    def __init__(self, slab: KvSlab, rooms: TransitRooms, tier: HostMapping, peers: PeerArenas) -> None:
        self._slab = slab
        self._rooms = rooms
        self._tier = tier
        self._peers = peers

    def refusal(self, transfer: Transfer) -> str:
        """Why the transfer was ordered for an engine of another state than this; empty if it was not."""
        if transfer.layout != self._slab.layout:
            return f"the layout is {self._slab.layout}, the transfer was ordered for {transfer.layout}"
        if transfer.payload is Payload.WEIGHTS:
            return "weights are loaded by Remap"
        return ""

    def check_own(self, transfer: Transfer) -> None:
        """:raises TransferError: the own slots or the own room that it names are not (or no longer) here."""
        if transfer.payload is Payload.KV:
            self._slab.check(transfer.region, transfer.extent_start, transfer.extent_length)
        else:
            self._rooms.view(transfer.room, self.size_bytes(transfer))

    def plan(self, transfer: Transfer) -> ChunkedCopy:
        """The copy that the transfer orders. :raises TransferError: it cannot be done."""
        is_host = transfer.kind in (TransferKind.SLAB_TO_HOST, TransferKind.HOST_TO_SLAB)
        if is_host and transfer.host is None:
            raise TransferError("the transfer names no host region")
        self.check_own(transfer)
        size, identity, own = self.size_bytes(transfer), self._identity(transfer), self._own(transfer)
        copy = (self._slab.access if transfer.payload is Payload.KV else HOST_KV).copy
        if is_host:
            to_own = transfer.kind is TransferKind.HOST_TO_SLAB
            return copy(identity, size, own, iter((self._host(transfer, size),)), to_own, nullcontext)
        if transfer.kind is TransferKind.PEER_TO_SLAB:
            return copy(identity, size, own, None, False, nullcontext)
        peer = self._peers.of(transfer.peer)
        other = self._at_peer(transfer, size)
        room = transfer.peer_handle if transfer.payload is Payload.KV else 0
        version = peer.version
        return copy(identity, size, own, other, False, lambda: peer.writing(transfer.peer_layout, version, room))

    def size_bytes(self, transfer: Transfer) -> int:
        """What the transfer copies, in bytes. :raises TransferError: there is no such room."""
        if transfer.payload is Payload.KV:
            return self._slab.size_bytes(transfer.region)
        return transfer.length_bytes or self._rooms.used_bytes(transfer.room)

    def _identity(self, transfer: Transfer) -> bytes:
        kind = self._slab.dtype if transfer.payload is Payload.KV else transfer.payload.name.lower()
        return region_identity(transfer.region, kind, transfer.chain)

    def _own(self, transfer: Transfer) -> Iterator[Any]:
        if transfer.payload is Payload.KV:
            return self._slab.pieces(transfer.region, transfer.extent_start, transfer.extent_length)
        return iter((self._rooms.view(transfer.room, self.size_bytes(transfer)),))

    def _host(self, transfer: Transfer, size_bytes: int) -> Bytes:
        host = transfer.host
        assert host is not None
        if size_bytes > host.length_bytes:
            raise TransferError(f"the region needs {size_bytes} bytes, its room has {host.length_bytes}")
        return self._tier.host_view(host.offset_bytes, size_bytes)

    def _at_peer(self, transfer: Transfer, size_bytes: int) -> Iterator[Bytes]:
        peer, layout = self._peers.of(transfer.peer), transfer.peer_layout
        if transfer.payload is not Payload.KV:
            return peer.room(transfer.peer_handle, size_bytes, layout)
        starts, lengths = transfer.peer_extent_start, transfer.peer_extent_length
        return peer.slots(self._slab.kind, transfer.region, starts, lengths, layout)
