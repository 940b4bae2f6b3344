"""The slots and transit rooms of the engine beside this process, mapped for one thread, chunk by chunk.

Both ways go through the engine's peer page: while a chunk is read or written neither its life nor its layout changes,
and a room that is written is open.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from dunlin.engine.remote.protocol import Chunk
from dunlin.engine.transfer.errors import LayoutChangingError, TransferError
from dunlin.engine.transfer.extents import KvKind, part_of
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.peer_arenas import PeerArena
from dunlin.kv.region_identity import signed_digest
from dunlin.messages.engine import Transfer
from dunlin.messages.types import EngineAgent, Payload, Region

PATIENCE_S = 2.0
"""A layout that changes is waited for so long, seconds."""
_PAUSE_S = 0.001


class EngineMemory:
    """One engine's memory in its life of now. Not to be shared by threads: a lock belongs to one of them."""

    def __init__(self, agent: EngineAgent) -> None:
        """:raises TransferError: its memory is not there."""
        self._arena = PeerArena(agent)

    @property
    def kind(self) -> KvKind:
        """What a slot holds."""
        return self._arena.kind

    def read(self, transfer: Transfer, part: Region, into: Bytes) -> Bytes:
        """Copy a part of what the transfer sends to the beginning of `into`; returns what was filled.

        :raises TransferError: it is not there (any more).
        """
        at = 0
        with self._entered(transfer.layout, 0, lambda: self._own_pieces(transfer, part)) as pieces:
            for piece in pieces:
                into[at : at + len(piece)] = piece
                at += len(piece)
        return into[:at]

    def write(self, chunk: Chunk, data: Bytes) -> int:
        """Copy a chunk to where it belongs; the checksum of what lies there then.

        :raises TransferError: it may not be written (any more); nothing was.
        """
        room = chunk.handle if chunk.payload is Payload.KV else 0
        hasher, at = chunk.hasher(), 0
        with self._entered(chunk.layout, room, lambda: self._pieces_of(chunk)) as pieces:
            for piece in pieces:
                piece[:] = data[at : at + len(piece)]
                hasher.update(piece.data)
                at += len(piece)
        return signed_digest(hasher.intdigest())

    def close(self) -> None:
        """From now on nothing is read or written."""
        self._arena.close()

    def _own_pieces(self, transfer: Transfer, part: Region) -> Iterator[Bytes]:
        if transfer.payload is not Payload.KV:
            return self._room(transfer.room, part, transfer.layout)
        first = part.start - transfer.region.start
        stop = part.stop - transfer.region.start
        slots = part_of(transfer.extent_start, transfer.extent_length, first, stop)
        return self._arena.slots(self.kind, part, *slots, transfer.layout)

    def _pieces_of(self, chunk: Chunk) -> Iterator[Bytes]:
        where = chunk.region
        if chunk.payload is not Payload.KV:
            return self._room(chunk.handle, where, chunk.layout)
        if chunk.handle < 1:
            raise TransferError("the transfer names no room")
        slots = part_of(*self._arena.room_extents(chunk.handle), where.start, where.stop)
        size = (where.layer_stop - where.layer_start) * (where.stop - where.start) * chunk.kind.slot_bytes
        if size != chunk.length_bytes or where.start < 0:
            raise TransferError(f"{chunk.length_bytes} bytes for {size}")
        return self._arena.slots(chunk.kind, where, *slots, chunk.layout)

    def _room(self, room: int, part: Region, layout: int) -> Iterator[Bytes]:
        """Bytes `[part.start, part.stop)` of a room."""
        if not 0 <= part.start < part.stop:
            raise TransferError(f"bytes {part.start} to {part.stop} of a transit room")
        return _after(self._arena.room(room, part.stop, layout), part.start)

    @contextmanager
    def _entered(self, layout: int, room: int, find: Callable[[], Iterator[Bytes]]) -> Iterator[Iterator[Bytes]]:
        """The pieces of a chunk, under the page's lock. A changing layout is waited for."""
        until_s = time.monotonic() + PATIENCE_S
        with ExitStack() as stack:
            while True:
                try:
                    pieces = find()
                    stack.enter_context(self._arena.writing(layout, self._arena.version, room))
                    break
                except LayoutChangingError:
                    if time.monotonic() > until_s:
                        raise
                time.sleep(_PAUSE_S)
            yield pieces


def _after(pieces: Iterator[Bytes], skipped: int) -> Iterator[Bytes]:
    for piece in pieces:
        if skipped < len(piece):
            yield piece[skipped:]
        skipped = max(skipped - len(piece), 0)
