"""One transfer on its way to another node: its next chunk, and what it has come to. Sends nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from dunlin.engine.remote.chunk_plan import kv_chunks, room_chunks
from dunlin.engine.remote.engine_memory import EngineMemory
from dunlin.engine.remote.protocol import CHUNK_BYTES, Chunk
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.kv.region_identity import region_identity, signed_digest
from dunlin.messages.engine import Transfer, TransferDone
from dunlin.messages.types import Payload, Region, TransferStatus


@dataclass(eq=False)
class OutgoingTransfer:
    """`unanswered` chunks were sent. `verdict` is why it ends before its last byte, None while it goes on."""

    transfer: Transfer
    order: int
    started_s: float
    unanswered: int = 0
    moved_bytes: int = 0
    verdict: tuple[TransferStatus, str] | None = None
    is_sent: bool = False
    _parts: Iterator[Region] | None = None
    _hasher: "xxhash.xxh3_64" = field(default_factory=xxhash.xxh3_64)

    @property
    def key(self) -> tuple[int, int]:
        """The most urgent transfer has the least."""
        return self.transfer.priority, self.order

    @property
    def can_send(self) -> bool:
        """Whether there is another chunk."""
        return self.verdict is None and not self.is_sent

    @property
    def is_over(self) -> bool:
        """Whether it can be answered: nothing of it is on its way."""
        return not self.can_send and not self.unanswered

    def next_chunk(self, memory: EngineMemory, number: int, into: Bytes) -> tuple[Chunk, Bytes] | None:
        """Read the next chunk; None at the end. :raises TransferError: it is not there (any more)."""
        if self._parts is None:
            self._parts = self._begin(memory)
        part = next(self._parts, None)
        if part is None:
            self.is_sent = True
            return None
        transfer = self.transfer
        data = memory.read(transfer, part, into)
        self._hasher.update(data.data)
        layout, handle = transfer.peer_layout, transfer.peer_handle
        return Chunk(number, transfer.payload, layout, handle, part, memory.kind, len(data)), data

    def answered(self, length_bytes: int, status: TransferStatus, detail: str) -> None:
        """One of the chunks sent has its answer."""
        self.unanswered -= 1
        if status is TransferStatus.OK:
            self.moved_bytes += length_bytes
        elif self.verdict is None:
            self.verdict = (status, detail)

    def done(self, now_s: float) -> TransferDone:
        """The answer."""
        status, detail = self.verdict or (TransferStatus.OK, "")
        checksum = signed_digest(self._hasher.intdigest())
        return TransferDone(
            self.transfer.ticket, status, checksum, self.moved_bytes, now_s - self.started_s, detail=detail
        )

    def _begin(self, memory: EngineMemory) -> Iterator[Region]:
        transfer, region = self.transfer, self.transfer.region
        if transfer.payload is not Payload.KV:
            self._hasher = xxhash.xxh3_64(region_identity(region, transfer.payload.name.lower(), transfer.chain))
            return room_chunks(transfer.length_bytes, CHUNK_BYTES)
        tokens = region.stop - region.start
        if tokens <= 0 or tokens != sum(transfer.extent_length) or region.layer_stop <= region.layer_start:
            raise TransferError(f"slots for {sum(transfer.extent_length)} tokens are named, the region has {tokens}")
        self._hasher = xxhash.xxh3_64(region_identity(region, memory.kind.dtype, transfer.chain))
        return kv_chunks(region, memory.kind.slot_bytes, CHUNK_BYTES)
