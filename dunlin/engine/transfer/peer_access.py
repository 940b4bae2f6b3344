"""What this engine lets its peers write: its slots and transit rooms, in the layout in force."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dunlin.engine.transfer.peer_arenas import node_name
from dunlin.engine.transfer.peer_page import PeerPage
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.types import ArenaGeometry, EngineAgent, i32, i64
from dunlin.wire.codec import encode

FileRuns = Sequence[tuple[int, int]]
"""Where the KV of a layer lies in the arena's file, from its first slot on: (offset, length) in bytes."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A memory file of this process."""

    fd: int
    inode: int
    size_bytes: int


def open_file(fd: int) -> OpenFile:
    """What a descriptor opens."""
    found = os.fstat(fd)
    return OpenFile(fd, found.st_ino, found.st_size)


class PeerAccess:
    """Owns the peer page. No peer writes before `publish`, nor while `closed`."""

    def __init__(self, page_fd: int, rooms: TransitRooms | None = None, node: str = "") -> None:
        """
        Args:
            node: the node's name in the cluster.
            page_fd: the memory file of the page; it belongs to the parent, and peers open it through this process.
            rooms: what peers may write besides slots.

        Raises:
            TimeoutError: a peer of the engine before this one is in the midst of a chunk and does not go on.
        """
        self._page = PeerPage(page_fd)
        self._page_fd = page_fd
        self._rooms = rooms
        self._node = node_name(node)
        self._published: tuple[int, bytes] | None = None

    @property
    def agent(self) -> bytes:
        """What a peer needs to know: the metadata of its `Meet`."""
        return encode(EngineAgent(self._node, os.getpid(), self._page_fd, self._page.life))

    def publish(
        self, arena_fd: int, slab: KvSlab, runs: Mapping[int, FileRuns], weights: Mapping[int, FileRuns] | None = None
    ) -> None:
        """Let peers write into the slots of the slab, which lie at `runs` of the file, by layer, and read `weights`.

        :raises TimeoutError: a peer is in the midst of a chunk and does not go on.
        """
        arena = open_file(arena_fd)
        layers = [layer for layer, slots in enumerate(slab.slots) if slots]
        flat = [(layer, offset, length) for layer in layers for offset, length in runs[layer]]
        of_weights = [(layer, offset, length) for layer, each in (weights or {}).items() for offset, length in each]
        rooms = self._rooms
        geometry = ArenaGeometry(
            layout=slab.layout,
            arena_fd=arena.fd,
            arena_inode=arena.inode,
            arena_bytes=arena.size_bytes,
            kv_dtype=slab.dtype,
            slot_bytes=slab.slot_bytes,
            layer=i32(layers),
            slots=i64([slab.slots[layer] for layer in layers]),
            run_layer=i32([layer for layer, _, _ in flat]),
            run_offset=i64([offset for _, offset, _ in flat]),
            run_length=i64([length for _, _, length in flat]),
            weight_layer=i32([layer for layer, _, _ in of_weights]),
            weight_offset=i64([offset for _, offset, _ in of_weights]),
            weight_length=i64([length for _, _, length in of_weights]),
            room_fd=-1 if rooms is None else rooms.fd,
            room_inode=0 if rooms is None else open_file(rooms.fd).inode,
            rooms=0 if rooms is None else rooms.count,
            room_bytes=0 if rooms is None else rooms.room_bytes,
        )
        self._published = slab.layout, encode(geometry)
        self._page.publish(*self._published)

    def renew(self) -> None:
        """Shut out every peer until it meets this engine again, by the new `agent`.

        :raises TimeoutError: a peer is in the midst of a chunk and does not go on.
        """
        self._page.renew()
        if self._published is not None:
            self._page.publish(*self._published)

    def close_room(self, handle: int) -> None:
        """Return once no peer writes into the room, which the instance has closed.

        :raises TimeoutError: a peer is in the midst of a chunk and does not go on.
        """
        self._page.await_writers(handle)

    def withdraw(self) -> None:
        """Let no peer write from now on, until `publish`: the slots are about to move.

        :raises TimeoutError: a peer is in the midst of a chunk and does not go on.
        """
        with self._page.closed():
            pass

    def close(self) -> None:
        """Let no peer write any more."""
        self.withdraw()
        self._page.close()
