"""The memory of other engines on the same node, mapped, so that KV is written straight into their slots: one copy.

What may be written is said by the peer's page, chunk by chunk; what is written by a `Transfer`. Unmapped at `forget`.
"""

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import cast

import numpy as np

from dunlin.effects import Address
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.extents import KvKind, check_extents
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.peer_page import PeerPageView
from dunlin.engine.transfer.room_records import room_offset
from dunlin.messages.agent import ArenaGeometry, EngineAgent
from dunlin.messages.types import Region
from dunlin.wire.codec import CodecError, decode

POPULATED_BYTES = 64 << 10
"""Pages are put in place so many bytes at a time: the kernel maps sixteen pages that exist at the price of one."""
_PIECE_BYTES = 16 * POPULATED_BYTES
_POPULATE_READ = 22


def node_name(name: str = "") -> str:
    """The running kernel and the name of the node: processes that share both map each other's memory."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {name}".strip()


class SharedFile:
    """One memory file of a peer's process, mapped."""

    def __init__(self, pid: int, fd: int, inode: int, size_bytes: int) -> None:
        """:raises TransferError: it is not there, is another file, or is smaller."""
        try:
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TransferError(f"the peer's memory is not there: {error}") from None
        try:
            found = os.fstat(opened)
            if found.st_ino != inode or found.st_size < size_bytes:
                raise TransferError(f"descriptor {fd} of process {pid} is not the peer's memory any more")
            self._map = mmap.mmap(opened, size_bytes)
        finally:
            os.close(opened)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._is_populated = np.zeros(-(-size_bytes // POPULATED_BYTES), dtype=bool)

    def pieces(self, offset: int, length: int) -> Iterator[Bytes]:
        """The bytes of a stretch, its pages in place."""
        for at in range(offset, offset + length, _PIECE_BYTES):
            stop = min(at + _PIECE_BYTES, offset + length)
            self._populate(at // POPULATED_BYTES, -(-stop // POPULATED_BYTES))
            yield self._bytes[at:stop]

    def view(self, offset: int, length: int) -> Bytes:
        """The bytes of a stretch; its pages come when they are touched."""
        return self._bytes[offset : offset + length]

    def _populate(self, first: int, stop: int) -> None:
        """An older kernel cannot; then the first touch of each page does."""
        if self._is_populated[first:stop].all():
            return
        start, end = first * POPULATED_BYTES, min(stop * POPULATED_BYTES, len(self._bytes))
        try:
            self._map.madvise(_POPULATE_READ, start, end - start)
        except OSError:
            pass
        self._is_populated[first:stop] = True


class _Layout:
    """Where the slots of one layout lie in the peer's file."""

    def __init__(self, geometry: ArenaGeometry, version: int) -> None:
        """:raises ValueError, KeyError: it contradicts itself."""
        self.geometry = geometry
        self.version = version
        self._slots = dict(zip(geometry.layer, geometry.slots, strict=True))
        self._runs: dict[int, list[tuple[int, int]]] = {layer: [] for layer in self._slots}
        self._ends: dict[int, list[int]] = {layer: [0] for layer in self._slots}
        for layer, offset, length in zip(geometry.run_layer, geometry.run_offset, geometry.run_length, strict=True):
            if not 0 <= offset < offset + length <= geometry.arena_bytes:
                raise ValueError(f"{length} bytes at {offset} of {geometry.arena_bytes}")
            self._runs[layer].append((offset, length))
            self._ends[layer].append(self._ends[layer][-1] + length)
        self.weights: dict[int, list[tuple[int, int]]] = {}
        for layer, offset, length in zip(
            geometry.weight_layer, geometry.weight_offset, geometry.weight_length, strict=True
        ):
            self.weights.setdefault(layer, []).append((offset, length))
        for layer, slots in self._slots.items():
            if slots * geometry.slot_bytes > self._ends[layer][-1]:
                raise ValueError(f"{slots} slots in {self._ends[layer][-1]} bytes")

    @property
    def arena(self) -> tuple[int, int, int]:
        """The file: descriptor, inode, size in bytes."""
        return self.geometry.arena_fd, self.geometry.arena_inode, self.geometry.arena_bytes

    @property
    def kind(self) -> KvKind:
        """What its slots hold."""
        return KvKind(self.geometry.kv_dtype, self.geometry.slot_bytes)

    def slots(self, region: Region) -> int:
        """Slots that all layers of the region have; 0 if one is not there."""
        return min(self._slots.get(layer, 0) for layer in range(region.layer_start, region.layer_stop))

    def file_runs(self, layer: int, start: int, length: int) -> Iterator[tuple[int, int]]:
        """Where slots lie, as (offset, length) in bytes."""
        at, stop = start * self.geometry.slot_bytes, (start + length) * self.geometry.slot_bytes
        index = bisect_right(self._ends[layer], at) - 1
        while at < stop:
            offset, run_length = self._runs[layer][index]
            inside = at - self._ends[layer][index]
            count = min(run_length - inside, stop - at)
            yield offset + inside, count
            at, index = at + count, index + 1


class PeerArena:
    """One engine that was met: its page and its files."""

    def __init__(self, agent: EngineAgent) -> None:
        """:raises TransferError: its memory is not there."""
        self._pid = agent.pid
        self._page = PeerPageView(f"/proc/{agent.pid}/fd/{agent.page_fd}", agent.life)
        try:
            self._layout = self._read()
            found = self._layout.geometry
            self._arena = SharedFile(self._pid, *self._layout.arena)
            self._rooms = (
                SharedFile(self._pid, found.room_fd, found.room_inode, found.rooms * found.room_bytes)
                if found.rooms
                else None
            )
        except TransferError:
            self.close()
            raise

    @property
    def version(self) -> int:
        """Of the slots that the last of `slots` and `room` named."""
        return self._layout.version

    def writing(self, layout: int, version: int, room: int = 0) -> AbstractContextManager[None]:
        """One chunk may be written while this is entered; raises as `PeerPageView.writing`."""
        return self._page.writing(layout, version, room)

    def read_weights(self, layer: int, offset: int, out: Bytes) -> int:
        """Read the peer's weights of a layer from `offset` on into `out`; returns how many bytes, all that `out` has.

        :raises TransferError: it does not hold the layer, or changes its layers now.
        """
        where = self._current(None)
        at, left = 0, offset
        with self._page.writing(where.geometry.layout, where.version):
            for start, length in where.weights.get(layer, ()):
                skipped = min(left, length)
                left -= skipped
                if (count := min(length - skipped, len(out) - at)) > 0:
                    out[at : at + count] = np.concatenate(list(self._arena.pieces(start + skipped, count)))
                    at += count
        if at < len(out):
            raise TransferError(f"the peer does not hold the weights of layer {layer}")
        return at

    @property
    def kind(self) -> KvKind:
        """What its slots hold."""
        return self._layout.kind

    def room_extents(self, room: int) -> tuple[list[int], list[int]]:
        """The slots of a room that is open: starts and lengths. :raises TransferError: it is closed."""
        return self._page.room_extents(room)

    def slots(
        self, kind: KvKind, region: Region, starts: Sequence[int], lengths: Sequence[int], layout: int
    ) -> Iterator[Bytes]:
        """The memory of the peer's slots, one layer after another.

        :raises TransferError: its layout is another one, or the slots are not there, or hold KV of another kind.
        """
        where = self._current(layout)
        there = where.kind
        if there != kind:
            text = f"the peer's KV is {there.dtype} of {there.slot_bytes} bytes a slot"
            raise TransferError(f"{text}, ours {kind.dtype} of {kind.slot_bytes}")
        if not (capacity := where.slots(region)):
            raise TransferError(f"the peer does not hold layers {region.layer_start} to {region.layer_stop}")
        check_extents(starts, lengths, capacity)
        if sum(lengths) != region.stop - region.start:
            raise TransferError(f"the peer's extents are {sum(lengths)} slots for {region.stop - region.start} tokens")
        return self._slot_pieces(where, region, list(zip(starts, lengths, strict=True)))

    def room(self, handle: int, length_bytes: int, layout: int) -> Iterator[Bytes]:
        """The memory of one of the peer's transit rooms. :raises TransferError: it has no such room."""
        found = self._current(layout).geometry
        offset = room_offset(handle, length_bytes, found.rooms, found.room_bytes)
        assert self._rooms is not None
        return self._rooms.pieces(offset, length_bytes)

    def room_memory(self, handle: int) -> Bytes:
        """All of one of the peer's transit rooms. :raises TransferError: it has no such room."""
        found = self._layout.geometry
        if self._rooms is None:
            raise TransferError("the peer has no transit rooms")
        offset = room_offset(handle, found.room_bytes, found.rooms, found.room_bytes)
        return self._rooms.view(offset, found.room_bytes)

    def alive(self) -> AbstractContextManager[None]:
        """One piece may be written into a room while this is entered; raises as `PeerPageView.alive`."""
        return self._page.alive()

    @property
    def is_met(self) -> bool:
        """Whether it has not been forgotten, and has not shut its peers out since it was met."""
        return self._page.is_current

    def close(self) -> None:
        """Hold its lock no more; the memory is unmapped with the last copy."""
        self._page.close()

    def _slot_pieces(self, where: _Layout, region: Region, extents: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        for layer in range(region.layer_start, region.layer_stop):
            for start, length in extents:
                for offset, count in where.file_runs(layer, start, length):
                    yield from self._arena.pieces(offset, count)

    def _current(self, layout: int | None) -> _Layout:
        """Where its slots and weights lie now; `layout` None: whatever its layout is."""
        if self._layout.version != self._page.version():
            before, self._layout = self._layout, self._read()
            if self._layout.arena != before.arena:
                self._arena = SharedFile(self._pid, *self._layout.arena)
        found = self._layout.geometry.layout
        if layout is not None and found != layout:
            raise TransferError(f"the peer's layout is {found}, the transfer was ordered for {layout}")
        return self._layout

    def _read(self) -> _Layout:
        try:
            version, geometry = self._page.geometry()
            return _Layout(cast(ArenaGeometry, decode("ArenaGeometry", geometry)), version)
        except (CodecError, ValueError, KeyError) as error:
            raise TransferError(f"the peer's page cannot be read: {error}") from None


class PeerArenas:
    """The engines that were met, by address."""

    def __init__(self, node: str = "") -> None:
        """`node`: the node's name in the cluster."""
        self._node = node_name(node)
        self._met: dict[Address, PeerArena] = {}

    def __contains__(self, peer: Address) -> bool:
        return peer in self._met

    def meet(self, peer: Address, metadata: bytes) -> None:
        """Map a peer's memory; what was mapped of it before is forgotten.

        :raises TransferError: it cannot be reached.
        """
        self.forget(peer)
        try:
            agent = cast(EngineAgent, decode("EngineAgent", metadata))
        except CodecError as error:
            raise TransferError(f"the peer's metadata cannot be read: {error}") from None
        if not agent.life:
            raise TransferError("the peer's engine takes no transfers")
        if agent.node != self._node:
            raise TransferError(f"the peer is on another node ({agent.node}): go by the host tiers")
        self._met[peer] = PeerArena(agent)

    def forget(self, peer: Address) -> None:
        """Let go of a peer's memory; an unknown one is ignored."""
        if (known := self._met.pop(peer, None)) is not None:
            known.close()

    def of(self, peer: Address | None) -> PeerArena:
        """:raises TransferError: it was not met."""
        if peer is None:
            raise TransferError("the transfer names no peer")
        if peer not in self._met:
            raise TransferError(f"{peer} was not met")
        return self._met[peer]
