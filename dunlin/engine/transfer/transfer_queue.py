"""The transfers that were asked for and have not been answered, in chunks by priority.

Every chunk is of the most urgent transfer, then of the oldest, whatever was begun before: an activation waits for one
chunk at most. Nothing here runs beside the engine's thread: steps give it turns at their safepoints, and an idle engine
all its time. Knows no step but the number of one whose layers are written while it runs.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.engine.transfer.copy_planner import CopyPlanner
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.region_copy import ChunkedCopy
from dunlin.messages.engine import Transfer, TransferDone
from dunlin.messages.types import Payload, TransferKind, TransferStatus


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Bounds of one queue. A chunk has at most `chunk_bytes`. A turn copies `turn_bytes`, and more as long as it takes
    no longer than `turn_share` of the time since the last one: beside steps of one token a large region is copied bit
    by bit, beside those of a long prompt at once.
    """

    waiting: int = 1024
    chunk_bytes: int = 512 << 10
    turn_bytes: int = 512 << 10
    turn_share: float = 0.2


@dataclass(frozen=True, slots=True)
class EndedTransfer:
    """A transfer and its one answer."""

    transfer: Transfer
    done: TransferDone


@dataclass
class _Pending:
    """A transfer under way. `layers`: so many of its region's layers are there to be copied; None: all."""

    transfer: Transfer
    order: int
    started_s: float
    layers: int | None
    copy: ChunkedCopy | None = None
    moved_bytes: int = 0
    busy_s: float = 0.0
    turn: int = 0
    turn_bytes: int = 0
    is_queued: bool = field(default=False)

    @property
    def key(self) -> tuple[int, int, int]:
        return self.transfer.priority, self.order, self.transfer.ticket


class TransferQueue:
    """Owns the transfers that have not been answered. Each `EndedTransfer` that its methods return is to be sent."""

    def __init__(self, planner: CopyPlanner, clock: Callable[[], float], limits: TransferLimits | None = None) -> None:
        self._planner = planner
        self._clock = clock
        self._limits = limits or TransferLimits()
        self._pending: dict[int, _Pending] = {}
        self._ready: list[tuple[int, int, int]] = []
        self._count = 0
        self._turn = 0
        self.copied_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._pending

    @property
    def has_work(self) -> bool:
        """Whether a chunk can be copied now."""
        return self._first() is not None

    def add(self, transfer: Transfer, *, is_written: bool = True) -> None:
        """Queue a transfer. Unless its bytes `is_written` they come layer by layer: see `layers_written`.

        :raises TransferError: too many wait, the ticket is in use, or it was ordered for another layout: nothing is
            done, and no answer follows.
        """
        if len(self._pending) >= self._limits.waiting:
            raise TransferError(f"{self._limits.waiting} transfers are queued")
        if transfer.ticket in self._pending:
            raise TransferError(f"transfer {transfer.ticket} is under way")
        if refusal := self._planner.refusal(transfer):
            raise TransferError(refusal)
        self._count += 1
        pending = _Pending(transfer, self._count, self._clock(), None if is_written else 0)
        self._pending[transfer.ticket] = pending
        if is_written:
            self._put(pending)

    def cancel(self, ticket: int) -> EndedTransfer | None:
        """Stop a transfer; None if it has ended."""
        pending = self._pending.get(ticket)
        return None if pending is None else self._end(pending, TransferStatus.CANCELLED)

    def forget_peer(self, peer: Address) -> list[EndedTransfer]:
        """Fail the transfers into the memory of a peer that is gone."""
        kind = TransferKind.SLAB_TO_PEER
        gone = [each for each in self._pending.values() if (each.transfer.kind, each.transfer.peer) == (kind, peer)]
        return [self._end(each, TransferStatus.FAILED, f"{peer} is gone") for each in gone]

    def layers_written(self, step: int, stop: int | None) -> None:
        """The step has written its layers below `stop`; None: it has ended, and what it wrote counts."""
        for pending in self._pending.values():
            if pending.transfer.step == step and pending.layers is not None:
                region = pending.transfer.region
                pending.layers = None if stop is None else max(min(stop, region.layer_stop) - region.layer_start, 0)
                self._put(pending)

    def step_left(self, step: int, sequences: Sequence[int] | None) -> list[EndedTransfer]:
        """Rows of these sequences (None: all) left the step: what was to be copied behind them is not written."""
        behind = [each for each in self._pending.values() if each.transfer.step == step and each.layers is not None]
        left = [each for each in behind if sequences is None or each.transfer.sequence in sequences]
        return [self._end(each, TransferStatus.FAILED, f"the row left step {step}") for each in left]

    def layout_changed(self) -> list[EndedTransfer]:
        """The slab has another layout: transfers whose own slots are gone fail."""
        ended = []
        for pending in list(self._pending.values()):
            try:
                self._planner.check_own(pending.transfer)
            except TransferError as error:
                ended.append(self._end(pending, TransferStatus.FAILED, str(error)))
        return ended

    def work_idle(self) -> list[EndedTransfer]:
        """Copy one chunk: no step waits."""
        pending = self._first()
        ended = None if pending is None else self._copy(pending, self._limits.chunk_bytes)
        return [] if ended is None else [ended]

    def work_in_step(self, since_s: float) -> list[EndedTransfer]:
        """Copy what may be copied between two safepoints of a step, `since_s` seconds after the last one."""
        self._turn += 1
        ended: list[EndedTransfer] = []
        until_bytes = self.copied_bytes + self._limits.turn_bytes
        until_s = self._clock() + self._limits.turn_share * since_s
        spent: list[_Pending] = []
        while (pending := self._first()) is not None:
            if self.copied_bytes >= until_bytes and self._clock() >= until_s:
                break
            room = self._turn_room(pending)
            if not room:
                spent.append(pending)
                self._take(pending)
                continue
            done = self._copy(pending, min(room, self._limits.chunk_bytes))
            ended += [] if done is None else [done]
        for pending in spent:
            self._put(pending)
        return ended

    def _turn_room(self, pending: _Pending) -> int:
        """Bytes that the transfer may still copy in this turn."""
        if pending.turn != self._turn:
            pending.turn, pending.turn_bytes = self._turn, 0
        bound = pending.transfer.step_bytes
        return max(bound - pending.turn_bytes, 0) if bound > 0 else self._limits.chunk_bytes

    def _copy(self, pending: _Pending, most_bytes: int) -> EndedTransfer | None:
        began_s = self._clock()
        try:
            if pending.copy is None:
                pending.copy = self._planner.plan(pending.transfer)
            copied = pending.copy.copy_chunk(min(most_bytes, self._written_bytes(pending)))
        except TransferError as error:
            pending.busy_s += self._clock() - began_s
            return self._end(pending, TransferStatus.FAILED, str(error))
        pending.moved_bytes += copied
        pending.turn_bytes += copied
        self.copied_bytes += copied
        pending.busy_s += self._clock() - began_s
        if not pending.copy.left_bytes:
            return self._end(pending, self._verdict(pending, pending.copy))
        if not self._written_bytes(pending):
            self._take(pending)
        return None

    def _written_bytes(self, pending: _Pending) -> int:
        """Bytes that are there and not copied."""
        if pending.layers is None:
            return pending.copy.left_bytes if pending.copy is not None else 1
        if pending.transfer.payload is not Payload.KV:
            return 0  # a step leaves what it writes into a room at its end
        region = pending.transfer.region
        layer_bytes = self._planner.size_bytes(pending.transfer) // max(region.layer_stop - region.layer_start, 1)
        return layer_bytes * pending.layers - pending.moved_bytes

    def _verdict(self, pending: _Pending, copy: ChunkedCopy) -> TransferStatus:
        transfer = pending.transfer
        wanted = None
        if transfer.kind is TransferKind.HOST_TO_SLAB and transfer.host is not None:
            wanted = transfer.host.checksum
        elif transfer.kind is TransferKind.PEER_TO_SLAB:
            wanted = transfer.checksum
        return TransferStatus.OK if wanted is None or wanted == copy.checksum else TransferStatus.CORRUPT

    def _end(self, pending: _Pending, status: TransferStatus, detail: str = "") -> EndedTransfer:
        del self._pending[pending.transfer.ticket]
        passed_s = self._clock() - pending.started_s
        checksum = 0 if pending.copy is None else pending.copy.checksum
        ticket, moved_bytes = pending.transfer.ticket, pending.moved_bytes
        done = TransferDone(ticket, status, checksum, moved_bytes, passed_s, detail, pending.busy_s)
        return EndedTransfer(pending.transfer, done)

    def _first(self) -> _Pending | None:
        """The most urgent transfer that can go on. Entries of transfers that cannot any more are dropped here."""
        while self._ready:
            _, order, ticket = self._ready[0]
            pending = self._pending.get(ticket)
            if pending is not None and pending.order == order and pending.is_queued:
                return pending
            heapq.heappop(self._ready)
        return None

    def _put(self, pending: _Pending) -> None:
        if not pending.is_queued and (pending.layers is None or self._written_bytes(pending) > 0):
            pending.is_queued = True
            heapq.heappush(self._ready, pending.key)

    def _take(self, pending: _Pending) -> None:
        """Set a transfer aside that is first in the queue."""
        pending.is_queued = False
        heapq.heappop(self._ready)
