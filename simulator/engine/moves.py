"""The moves of a modelled engine: one copy at a time, the most urgent first, then the oldest.

A more urgent move suspends the current one. Where the device copies in both directions at once, this holds for each.
A move takes the time of the timing on links that it shares with nothing, and longer on busy ones. A copy into the KV
cache is verified as the real engine does it: by a checksum of the region's identity and of the bytes.
"""

from dataclasses import dataclass

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import EngineReady, Transfer, TransferDone
from dunlin.messages.types import HostRegion, TransferKind, TransferStatus
from simulator.engine.errors import ContractBroken
from simulator.engine.host_memory import SimulatedHostMemory, checksum_of
from simulator.engine.kv_audit import KvAudit
from simulator.engine.sequences import SimulatedSequences, slots_of_extents
from simulator.engine.timing import Timing
from simulator.links.flows import Flow
from simulator.links.ports import EnginePorts

HOST_KINDS = (TransferKind.SLAB_TO_HOST, TransferKind.HOST_TO_SLAB)


@dataclass(frozen=True, slots=True)
class TransferDue:
    """The last byte of the move that was asked for as the `order`-th is through; stale if it was cancelled."""

    order: int


@dataclass(eq=False, slots=True)
class _Pending:
    """A move that is not answered, which takes `whole_s` on idle links. `flow`: its copy, which may be suspended."""

    move: Transfer
    order: int
    asked_s: float
    whole_s: float
    left_bytes: float
    flow: Flow | None = None


class SimulatedKvMover:
    """Owns the moves that are not answered, which go over the engine's `ports`.

    `moved_bytes` counts what arrived; `is_mapped`: a host tier is mapped.
    """

    def __init__(
        self,
        instance: Address,
        ready: EngineReady,
        sequences: SimulatedSequences,
        tier: SimulatedHostMemory,
        timing: Timing,
        audit: KvAudit | None,
        ports: EnginePorts,
    ) -> None:
        self.moved_bytes = 0
        self.is_mapped = False
        self._instance = instance
        self._ready = ready
        self._sequences = sequences
        self._tier = tier
        self._timing = timing
        self._audit = audit
        self._ports = ports
        self._pending: dict[int, _Pending] = {}
        self._failed: dict[int, int] = {}
        self._orders = 0
        self._current: dict[TransferKind, _Pending] = {}

    def is_pending(self, move: int) -> bool:
        """Whether the move is not answered."""
        return move in self._pending

    def failed_sequence(self, move: int) -> int | None:
        """The sequence that this move failed to restore, whose rows must not run; None: it did not fail."""
        return self._failed.get(move)

    def forget(self, number: int) -> None:
        """Drop the failed moves of a closed sequence."""
        if self._failed:
            self._failed = {move: sequence for move, sequence in self._failed.items() if sequence != number}

    def writing(self) -> list[int]:
        """The slots that pending moves write."""
        moves = [pending.move for pending in self._pending.values()]
        ins = [
            slots_of_extents(move.extent_start, move.extent_length)
            for move in moves
            if move.kind is TransferKind.HOST_TO_SLAB
        ]
        return [slot for slots in ins for slot in slots]

    def add(self, now_s: float, move: Transfer) -> list[Effect]:
        """Queue a move.

        Raises:
            ContractBroken: its number is in use.
        """
        if move.ticket in self._pending:
            raise ContractBroken(f"move {move.ticket} is named twice")
        self._orders += 1
        size = self._bytes(move)
        took_s = self._timing.move_s(move.kind, size)
        pending = self._pending[move.ticket] = _Pending(move, self._orders, now_s, took_s, max(1.0, size))
        self._start_most_urgent(now_s, self._lane(pending))
        return []

    def cancel(self, now_s: float, number: int) -> list[Effect]:
        """Cancel a pending move; nothing if it was answered."""
        pending = self._pending.get(number)
        if pending is None:
            return []
        return self._end(now_s, pending, TransferStatus.CANCELLED)

    def on_due(self, now_s: float, due: TransferDue) -> list[Effect]:
        """The last byte of a move is through."""
        pending = next((each for each in self._current.values() if each.order == due.order), None)
        if pending is None or pending.flow is None or not pending.flow.is_over:
            return []
        return self._end(now_s, pending, *self._copy(pending.move))

    def died(self, now_s: float) -> None:
        """The engine ended in the midst of its copies."""
        for pending in self._current.values():
            self._suspend(now_s, pending)
        self._current.clear()
        self._pending.clear()

    def _lane(self, pending: _Pending) -> TransferKind:
        """The moves of which one goes at a time."""
        return pending.move.kind if self._ports.links.is_duplex else TransferKind.SLAB_TO_HOST

    def _start_most_urgent(self, now_s: float, lane: TransferKind) -> None:
        """Start or resume the most urgent move, unless the current one is through and only has to be answered."""
        here = [each for each in self._pending.values() if self._lane(each) is lane]
        best = min(here, key=lambda each: (each.move.priority, each.order), default=None)
        current = self._current.get(lane)
        if best is None or best is current:
            return
        if current is not None:
            if current.flow is not None and current.flow.is_over:
                return
            self._suspend(now_s, current)
        self._current[lane] = best
        due, whole = TransferDue(best.order), max(1.0, self._bytes(best.move))
        best.flow = self._ports.copy_to_host(
            now_s, best.move.kind is TransferKind.SLAB_TO_HOST, best.left_bytes, whole, best.whole_s,
            best.move.priority, due,
        )  # fmt: skip

    def _suspend(self, now_s: float, pending: _Pending) -> None:
        if pending.flow is not None:
            pending.left_bytes = self._ports.stop(now_s, pending.flow)

    def _end(self, now_s: float, pending: _Pending, status: TransferStatus, checksum: int = 0) -> list[Effect]:
        move, lane = pending.move, self._lane(pending)
        del self._pending[move.ticket]
        if status is not TransferStatus.OK and move.kind is TransferKind.HOST_TO_SLAB:
            self._failed[move.ticket] = move.sequence
        if self._current.get(lane) is pending:
            self._suspend(now_s, pending)
            del self._current[lane]
        size = self._bytes(move) if status is TransferStatus.OK else 0
        self.moved_bytes += size
        busy_s = pending.whole_s * self._ports.links.host_busy_share
        done = TransferDone(move.ticket, status, checksum, size, now_s - pending.asked_s, busy_s=busy_s)
        self._start_most_urgent(now_s, lane)
        return [Send(self._instance, done)]

    def _bytes(self, move: Transfer) -> int:
        region, layers = move.region, len(self._ready.layers)
        share = (region.layer_stop - region.layer_start) / layers
        return int((region.stop - region.start) * self._ready.kv_bytes_per_token * share)

    def _copy(self, move: Transfer) -> tuple[TransferStatus, int]:
        host, tokens = move.host, move.region.stop - move.region.start
        if host is None or not self.is_mapped:
            raise ContractBroken(f"move {move.ticket}: no host tier is mapped, or no region of it is named")
        given = 0
        for length in move.extent_length:
            given += length
        if given != tokens:
            raise ContractBroken(f"move {move.ticket}: {given} slots for {tokens} tokens")
        if self._bytes(move) > host.length_bytes:
            raise ContractBroken(f"move {move.ticket} of {self._bytes(move)} bytes into {host.length_bytes}")
        copy = self._copy_out if move.kind is TransferKind.SLAB_TO_HOST else self._copy_in
        return copy(move, host, tokens)

    def _copy_out(self, move: Transfer, host: HostRegion, tokens: int) -> tuple[TransferStatus, int]:
        content = [tokens]
        if self._audit is not None:
            slots = slots_of_extents(move.extent_start, move.extent_length)
            content = self._audit.copied_out(slots, self._layers_of(move))
        self._tier.write(host, content)
        return TransferStatus.OK, self._checksum(move, content)

    def _copy_in(self, move: Transfer, host: HostRegion, tokens: int) -> tuple[TransferStatus, int]:
        content = self._tier.read(host)
        slots: list[int] = []
        if self._audit is not None:
            slots = slots_of_extents(move.extent_start, move.extent_length)
            self._audit.copied_in(slots, content, self._layers_of(move))
        checksum = self._checksum(move, content)
        if checksum != host.checksum:
            return TransferStatus.CORRUPT, checksum
        if move.sequence == 0:
            return TransferStatus.OK, checksum
        sequence = self._sequences.by_number.get(move.sequence)
        if sequence is None or move.region.start > sequence.kv_tokens:
            return TransferStatus.FAILED, checksum
        sequence.kv_tokens = move.region.stop
        if self._audit is not None:
            self._audit.adopted(move.sequence, move.region.start, slots)
        return TransferStatus.OK, checksum

    def _layers_of(self, move: Transfer) -> frozenset[int]:
        return frozenset(range(move.region.layer_start, move.region.layer_stop))

    def _checksum(self, move: Transfer, content: list[int]) -> int:
        return checksum_of(move.region, self._ready.kv_dtype, move.chain, content)
