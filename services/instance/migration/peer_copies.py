"""KV between two engines: the sender's writes into slots that the receiver's instance reserved.

The receiver names its slots in `PeerRoom`; the sender's engine meets the receiver's once, writes spans into them, and
the receiver's engine hashes what lies there before a sequence may use it. A span that a step still computes is
*pushed*: each layer is written once the step has finished it. Knows no stage of a migration and no kvstore.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import CancelTransfer, ClosePeerRoom, EngineReady, OpenPeerRoom, Transfer
from dunlin.messages.group import PeerRoom, Written
from dunlin.messages.types import I64, Priority, Region, TransferKind, i64
from services.instance.engine.met_engines import MetEngines, PeerState
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.residency import Extent, Residency, SlotUse
from services.instance.kv.tickets import ArrivalCheck, PeerCopy
from services.instance.kv.whole_regions import all_layers
from services.instance.migration.outgoing import LayerPush, OutgoingMigration
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.states import SequenceState

MAX_COPY_TOKENS = 4096
"""Tokens of one copy: the receiver hears of each, so that a long text shows progress."""
WITH_SLOTS = (SequenceState.RUNNING, SequenceState.PARKED, SequenceState.LEAVING)


class PeerCopies:
    """Writes into peers' slots and checks what peers wrote here. `met_engines`: which engines can be reached; `steps`:
    which steps compute what is pushed.
    """

    def __init__(
        self,
        engine: Address,
        lifecycle: SequenceLifecycle,
        host_cache: HostCacheClient,
        met_engines: MetEngines,
        steps: StepLedger,
    ) -> None:
        self._engine = engine
        self._met_engines = met_engines
        self._lifecycle = lifecycle
        self._steps = steps
        self._host_cache = host_cache
        self._tickets = host_cache.tickets
        self._ready: EngineReady | None = None

    @property
    def is_on(self) -> bool:
        """Whether this engine lets peers write into its memory, and can write into theirs."""
        return self._ready is not None and bool(self._met_engines.agent)

    def on_engine_ready(self, ready: EngineReady) -> None:
        """A new engine, or it has other layers or slots: what is reserved from now on lies in its layout."""
        self._ready = ready

    def on_engine_lost(self) -> None:
        """No copy and no check will be answered."""
        self._ready = None
        self._tickets.take_all(PeerCopy)
        self._tickets.take_all(ArrivalCheck)

    # --- the sender ---

    def is_open(self, migration: OutgoingMigration) -> bool:
        """Whether the sequence's KV can go straight into the target's slots."""
        room, sequence = migration.room, migration.sequence
        if not self.is_on or room is None or migration.by_host_tier or sequence.state not in WITH_SLOTS:
            return False
        return self._met_engines.state(room.engine, room.agent) is not PeerState.UNREACHABLE

    def copy(self, migration: OutgoingMigration, least: int) -> list[Effect]:
        """Copy the next span into the target's slots, if none is under way and more than `least` tokens are not there.

        Without room for more the migration's `copying_stopped` is set: the target computes the rest.
        """
        room, sequence, start = migration.room, migration.sequence, migration.offered
        assert room is not None
        if meeting := self._met_engines.meet(room.engine, room.agent):
            return meeting
        if self._is_busy(migration, room) or sequence.valid - start <= least:
            return []
        stop = min(sequence.valid, start + MAX_COPY_TOKENS, _tokens(room))
        if stop <= start:
            migration.copying_stopped = True
            return []
        return [self._write(migration, room, start, stop)]

    def push(self, migration: OutgoingMigration) -> list[Effect]:
        """Copy all that the newest step of the sequence computes, and what lies before, once per step; nothing without
        such a step, while a copy is under way, or while an interrupt that names the sequence has no answer.
        """
        room, sequence, start = migration.room, migration.sequence, migration.offered
        assert room is not None
        if self._steps.is_held(sequence) or not (steps := self._steps.steps_with(sequence)):
            return []
        if meeting := self._met_engines.meet(room.engine, room.agent):
            return meeting
        is_pushed = migration.push is not None and migration.push.step == steps[-1]
        if is_pushed or self._is_busy(migration, room):
            return []
        stop = min(sequence.issued, len(sequence.tokens), _tokens(room))
        if stop <= max(start, sequence.valid):
            return []
        written = self._write(migration, room, start, stop, steps[-1])
        migration.push = LayerPush(migration.copy_ticket, steps[-1], stop)
        return [written]

    def withdraw_push(self, migration: OutgoingMigration) -> list[Effect]:
        """Cancel the push under way if the row has left its step: the engine may hear of the push after that."""
        push, sequence = migration.push, migration.sequence
        if push is None or push.is_void or push.ticket != migration.copy_ticket:
            return []
        if sequence.valid >= push.stop or push.step in self._steps.steps_with(sequence):
            return []
        push.is_void = True
        return [self.cancel(push.ticket)]

    def cancel(self, ticket: int) -> Effect:
        """Stop a copy; `TransferDone` still answers it."""
        return Send(self._engine, CancelTransfer(ticket))

    # --- the receiver ---

    def room(self, residency: Residency) -> PeerRoom | None:
        """What a sender must know to write into these slots; None: it cannot."""
        if self._ready is None or not self.is_on:
            return None
        extents = residency.slots_of(residency.start, residency.stop)
        return PeerRoom(self._engine, self._met_engines.agent, self._ready.layout, *_columns(extents))

    def open_room(self, handle: int, room: PeerRoom) -> Effect:
        """Let peers write into the room."""
        return Send(self._engine, OpenPeerRoom(handle, room.extent_start, room.extent_length))

    def close_room(self, handle: int) -> Effect:
        """No peer writes into the room once the engine has taken this in: before it takes any later step."""
        return Send(self._engine, ClosePeerRoom(handle))

    def check(self, handle: int, written: Written, extents: list[Extent]) -> Effect:
        """Have the engine compare what lies in the slots with what the sender says that it wrote."""
        ticket = self._tickets.add(ArrivalCheck(handle))
        starts, lengths = _columns(extents)
        checked = Transfer(
            ticket,
            TransferKind.PEER_TO_SLAB,
            0,
            written.region,
            starts,
            lengths,
            chain=written.chain,
            checksum=written.checksum,
            layout=self._layout,
        )
        return Send(self._engine, checked)

    def fence(self, source: Address) -> Effect:
        """No engine of `source` writes here once the engine has taken this in: before it takes any later step."""
        return self._met_engines.forget(Address("engine", source.name))

    @property
    def _layout(self) -> int:
        return self._ready.layout if self._ready is not None else 0

    def _is_busy(self, migration: OutgoingMigration, room: PeerRoom) -> bool:
        """Whether the engine has not met the peer yet, or has not answered the last copy."""
        return bool(migration.copy_ticket) or self._met_engines.state(room.engine, room.agent) is PeerState.ASKED

    def _write(self, migration: OutgoingMigration, room: PeerRoom, start: int, stop: int, step: int = 0) -> Effect:
        """`step` is to compute what is written; 0: it is there."""
        assert self._ready is not None
        sequence = migration.sequence
        region = Region(0, len(all_layers(self._ready)), start, stop)
        chain = self._host_cache.chain_hash(sequence, stop)
        ticket = migration.copy_ticket = self._tickets.add(PeerCopy(sequence, migration.number, region, chain))
        own, theirs = self._lifecycle.kv_cache.extents(sequence, start, stop), _part(room, start, stop)
        copied = Transfer(
            ticket,
            TransferKind.SLAB_TO_PEER,
            sequence.number,
            region,
            *_columns(own),
            peer=room.engine,
            peer_handle=migration.handle,
            priority=Priority.KV,
            chain=chain,
            layout=self._layout,
            peer_extent_start=theirs[0],
            peer_extent_length=theirs[1],
            peer_layout=room.layout,
            step=step,
        )
        return Send(self._engine, copied)


def _tokens(room: PeerRoom) -> int:
    total = 0
    for length in room.extent_length:
        total += length
    return total


def _part(room: PeerRoom, start: int, stop: int) -> tuple[I64, I64]:
    """The extents of the room's positions `[start, stop)`."""
    residency = Residency(0, SlotUse.RESERVED)
    for first, length in zip(room.extent_start, room.extent_length, strict=True):
        residency.add(residency.stop, (first, length))
    return _columns(residency.slots_of(start, stop))


def _columns(extents: list[Extent]) -> tuple[I64, I64]:
    return i64([first for first, _ in extents]), i64([length for _, length in extents])
