"""KV between modelled engines: the sender writes into the receiver's slots, the receiver looks at what was written.

As the real ones: nothing happens at the receiver's engine until its own PEER_TO_SLAB compares what lies in its slots
with the sender's checksum.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import (
    ClosePeerRoom,
    Forget,
    Interrupted,
    Meet,
    Met,
    OpenPeerRoom,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Payload, TransferKind, TransferStatus
from simulator.engine.host_memory import checksum_of
from simulator.engine.kv_audit import TORN
from simulator.engine.peer_network import PeerEnd, PeerNetwork
from simulator.engine.sequences import SimulatedSequences, slots_of_extents
from simulator.links.flows import Flow
from simulator.links.ports import EnginePorts

PEER_KINDS = (TransferKind.SLAB_TO_PEER, TransferKind.PEER_TO_SLAB)


@dataclass(frozen=True, slots=True)
class PeerCopyDue:
    """The last byte of a copy to a peer or of a look at the own slots is through; stale after a cancel."""

    ticket: int


@dataclass(slots=True)
class _Pending:
    """`flow` is what is copied now; None: nothing can be. `is_behind`: its step writes what it copies; a step's KV is
    copied beside it, but for the last layer, `last_bytes`, which follows when it has ended.
    """

    transfer: Transfer
    asked_s: float
    flow: Flow | None = None
    size: int = 0
    is_behind: bool = False
    last_bytes: int = 0


class PeerTransfers:
    """Owns the peers that one engine met, and its transfers with them that are not answered.

    `layer_bytes`: bytes of one token's KV in one layer, and of its hidden state. `network`: None where no engine can be
    met. `is_unanswered(step)`: it is queued or runs; `is_running(step)`: it runs. `ports`: its links. `is_behind`:
    a transfer copies what a step writes.
    """

    def __init__(
        self,
        instance: Address,
        engine: Address,
        network: PeerNetwork | None,
        sequences: SimulatedSequences,
        layer_bytes: float,
        kv_dtype: str,
        is_unanswered: Callable[[int], bool],
        is_running: Callable[[int], bool],
        ports: EnginePorts,
    ) -> None:
        self.moved_bytes = 0
        self._ports = ports
        self._instance = instance
        self._engine = engine
        self._network = network
        self._sequences = sequences
        self._layer_bytes = layer_bytes
        self._kv_dtype = kv_dtype
        self._is_unanswered = is_unanswered
        self._is_running = is_running
        self.is_behind = False
        self._met: dict[Address, PeerEnd] = {}
        self._pending: dict[int, _Pending] = {}
        self._failed: dict[int, int] = {}

    def is_pending(self, ticket: int) -> bool:
        """Whether the transfer is not answered."""
        return ticket in self._pending

    def failed_sequence(self, ticket: int) -> int | None:
        """The sequence whose KV this transfer failed to bring; None: it did not fail."""
        return self._failed.get(ticket)

    @property
    def met(self) -> Container[Address]:
        """The peers whose memory is mapped."""
        return self._met

    def reaches(self, peer: Address) -> bool:
        """Whether the peer was met as it is now: it runs, and has not shut out its peers since."""
        met = self._met.get(peer)
        return met is not None and self._network is not None and self._network.ends.get(peer) is met

    def life(self, peer: Address) -> int:
        """Which life of the peer was met; 0: it cannot be reached any more."""
        return self._met[peer].life if self.reaches(peer) else 0

    def is_near(self, peer: Address) -> bool:
        """Whether the peer, which was met, is an engine of the same node."""
        return self._ports.is_near(self._met[peer].ports) if peer in self._met else False

    def lacks(self, peer: Address, layer: int) -> str:
        """Why a layer's weights cannot be read out of the peer's memory; empty if they can."""
        if not self.reaches(peer):
            return f"{peer} was not met, or its engine is gone"
        is_held = layer in self._met[peer].layers.held
        return "" if is_held else f"{peer}: the peer does not hold the weights of layer {layer}"

    def meet(self, now_s: float, message: Meet) -> list[Effect]:
        """Map a peer's memory; transfers into what was mapped of it before fail first."""
        effects = self._fail_all(now_s, message.peer, "the peer is met anew")
        self._met.pop(message.peer, None)
        end = self._network.ends.get(message.peer) if self._network is not None else None
        if end is None or end.agent != message.metadata:
            return [*effects, Send(self._instance, Met(message.peer, f"{message.peer} cannot be reached"))]
        self._met[message.peer] = end
        return [*effects, Send(self._instance, Met(message.peer))]

    def forget(self, now_s: float, message: Forget) -> list[Effect]:
        """Unmap a peer's memory: transfers into it fail. No peer writes here that does not meet this engine anew."""
        self._met.pop(message.peer, None)
        effects = self._fail_all(now_s, message.peer, "the peer is forgotten")
        if self._network is None or self._own() is None:
            return effects
        return [*effects, Send(self._instance, Met(message.peer, agent=self._network.renew(self._engine).agent))]

    def died(self, now_s: float) -> None:
        """The engine ended in the midst of its copies: what it was writing at peers is torn."""
        for pending in self._pending.values():
            self._stop(now_s, pending)
            self._tear(pending.transfer)
        self._pending.clear()

    def _stop(self, now_s: float, pending: _Pending) -> None:
        if pending.flow is not None:
            self._ports.stop(now_s, pending.flow)

    def open_room(self, now_s: float, message: OpenPeerRoom) -> list[Effect]:
        """Peers may write into the room."""
        if (own := self._own()) is not None:
            own.open_rooms.add(message.handle)
        return []

    def close_room(self, now_s: float, message: ClosePeerRoom) -> list[Effect]:
        """No peer writes into the room any more."""
        if (own := self._own()) is not None:
            own.open_rooms.discard(message.handle)
        return []

    def add(self, now_s: float, transfer: Transfer) -> list[Effect]:
        """Begin a transfer; refused where its peer was not met, or its ticket is in use."""
        network, own = self._network, self._own()
        if network is None or own is None:
            return self._refuse(transfer, "no peer can be reached")
        if transfer.ticket in self._pending or transfer.payload not in (Payload.KV, Payload.ACTIVATION):
            return self._refuse(transfer, f"ticket {transfer.ticket}, payload {transfer.payload.name}")
        if transfer.kind is TransferKind.SLAB_TO_PEER and (transfer.peer is None or transfer.peer not in self._met):
            return self._refuse(transfer, f"{transfer.peer} was not met")
        pending = self._pending[transfer.ticket] = _Pending(transfer, now_s)
        is_read = transfer.kind is TransferKind.SLAB_TO_PEER or transfer.payload is Payload.ACTIVATION
        if is_read and self._is_unanswered(transfer.step):
            self.is_behind = pending.is_behind = True
        else:
            self._begin(now_s, pending)
        return []

    def begin_behind(self, now_s: float) -> list[Effect]:
        """Copy what steps have written: what lies in rooms when the step has ended, KV beside it."""
        if self._network is None or self._own() is None:
            return []
        behind = [pending for pending in self._pending.values() if pending.is_behind]
        for pending in behind:
            step = pending.transfer.step
            if not self._is_unanswered(step):
                if pending.flow is None:  # else the last layer follows what is under way
                    self._begin(now_s, pending, pending.last_bytes)
                    pending.is_behind = False
            elif pending.transfer.payload is Payload.KV and not pending.size and self._is_running(step):
                layers, size = len(_layers_of(pending.transfer)), self._bytes(pending.transfer)
                if layers == 1:
                    continue
                pending.last_bytes = -(-size // layers)
                self._begin(now_s, pending, size - pending.last_bytes)
        self.is_behind = any(pending.is_behind for pending in behind)
        return []

    def fail_left(self, now_s: float, effects: Sequence[Effect]) -> list[Effect]:
        """The answers of transfers behind rows that left or did not run, by the engine's other answers."""
        failed: list[Effect] = []
        for event in [effect.message for effect in effects if isinstance(effect, Send)]:
            if isinstance(event, Interrupted):
                for step, sequence in zip(event.step, event.sequence, strict=True):
                    failed += self._step_left(now_s, step, [sequence])
            elif isinstance(event, StepDone):
                failed += self._step_left(now_s, event.step, [*event.dropped, *event.left])
            elif isinstance(event, Unsupported):
                failed += self._step_left(now_s, event.step, None)
        return failed

    def _step_left(self, now_s: float, step: int, sequences: list[int] | None) -> list[Effect]:
        behind = [each.transfer for each in self._pending.values() if each.is_behind and each.transfer.step == step]
        left = [each.ticket for each in behind if sequences is None or each.sequence in sequences]
        status = TransferStatus.FAILED
        return [effect for each in left for effect in self._end(now_s, each, status, 0, f"the row left step {step}")]

    def _begin(self, now_s: float, pending: _Pending, part_bytes: int = 0) -> None:
        """Copy so many bytes of it; 0: all."""
        transfer, due = pending.transfer, PeerCopyDue(pending.transfer.ticket)
        pending.size = self._bytes(transfer)
        if transfer.kind is TransferKind.SLAB_TO_PEER and transfer.peer is not None:
            peer, size = self._met[transfer.peer].ports, part_bytes or pending.size
            pending.flow = self._ports.copy_to_peer(now_s, peer, size, transfer.priority, due)
        else:
            pending.flow = self._ports.look(now_s, pending.size, due)

    def cancel(self, now_s: float, ticket: int) -> list[Effect]:
        """Cancel a transfer under way; nothing if it was answered."""
        return self._end(now_s, ticket, TransferStatus.CANCELLED) if ticket in self._pending else []

    def on_due(self, now_s: float, due: PeerCopyDue) -> list[Effect]:
        """The last byte is through."""
        if due.ticket not in self._pending:
            return []
        pending = self._pending[due.ticket]
        if pending.is_behind:
            pending.flow = None  # all but what the step has not written yet
            return self.begin_behind(now_s)
        transfer = pending.transfer
        if transfer.kind is TransferKind.SLAB_TO_PEER:
            return self._end(now_s, due.ticket, *self._written(transfer))
        return self._end(now_s, due.ticket, *self._looked_at(transfer))

    def _written(self, transfer: Transfer) -> tuple[TransferStatus, int, str]:
        """Write into the peer's slots what the own ones hold."""
        assert transfer.peer is not None
        peer, own, network = self._met[transfer.peer], self._own(), self._network
        if network is None or own is None or network.ends.get(transfer.peer) is not peer:
            return TransferStatus.FAILED, 0, "the peer's engine is gone"
        if transfer.peer_layout != peer.layers.layout:
            return TransferStatus.FAILED, 0, f"layout {peer.layers.layout} is in force at the peer"
        if transfer.payload is Payload.ACTIVATION:
            sent = own.rooms.content(transfer.room)
            peer.rooms.put(transfer.peer_handle, sent)
            own.rooms.clear(transfer.room)
            return TransferStatus.OK, sent.checksum, ""
        if transfer.peer_handle and transfer.peer_handle not in peer.open_rooms:
            return TransferStatus.FAILED, 0, f"the room {transfer.peer_handle} is closed"
        content, layers = [transfer.region.stop - transfer.region.start], _layers_of(transfer)
        if own.audit is not None:
            content = own.audit.copied_out(slots_of_extents(transfer.extent_start, transfer.extent_length), layers)
        if peer.audit is not None:
            slots = slots_of_extents(transfer.peer_extent_start, transfer.peer_extent_length)
            peer.audit.copied_in(slots, content, layers)
        return TransferStatus.OK, self._checksum(transfer, content), ""

    def _looked_at(self, transfer: Transfer) -> tuple[TransferStatus, int, str]:
        """Compare what lies in the own slots with the sender's checksum, and give it to the sequence."""
        own, region = self._own(), transfer.region
        if transfer.payload is Payload.ACTIVATION:
            return self._looked_into(transfer)
        slots, content = slots_of_extents(transfer.extent_start, transfer.extent_length), [region.stop - region.start]
        if own is not None and own.audit is not None:
            content = own.audit.content_of(slots, _layers_of(transfer))
        checksum = self._checksum(transfer, content)
        if checksum != transfer.checksum:
            return TransferStatus.CORRUPT, checksum, ""
        if transfer.sequence == 0 or own is None or len(_layers_of(transfer)) < own.layers.all:
            return TransferStatus.OK, checksum, ""
        sequence = self._sequences.by_number.get(transfer.sequence)
        if sequence is None or region.start > sequence.kv_tokens:
            return TransferStatus.FAILED, checksum, f"sequence {transfer.sequence} has no KV up to {region.start}"
        sequence.kv_tokens = region.stop
        if own.audit is not None:
            own.audit.adopted(transfer.sequence, region.start, slots)
        return TransferStatus.OK, checksum, ""

    def _looked_into(self, transfer: Transfer) -> tuple[TransferStatus, int, str]:
        """Compare what lies in the own room with the sender's checksum; nothing else may be read."""
        own = self._own()
        found = own.rooms.content(transfer.room).checksum if own is not None else 0
        if found == transfer.checksum:
            return TransferStatus.OK, found, ""
        if own is not None:
            own.rooms.clear(transfer.room)
        return TransferStatus.CORRUPT, found, ""

    def _end(
        self, now_s: float, ticket: int, status: TransferStatus, checksum: int = 0, detail: str = ""
    ) -> list[Effect]:
        pending = self._pending.pop(ticket)
        self._stop(now_s, pending)
        transfer, is_ok = pending.transfer, status is TransferStatus.OK
        if not is_ok:
            self._tear(transfer)
        size = pending.size if is_ok else 0
        self.moved_bytes += size if transfer.kind is TransferKind.SLAB_TO_PEER else 0
        if transfer.kind is TransferKind.PEER_TO_SLAB and transfer.payload is Payload.KV and not is_ok:
            self._failed[ticket] = transfer.sequence
        done = TransferDone(ticket, status, checksum, size, now_s - pending.asked_s, detail)
        return [Send(self._instance, done)]

    def _fail_all(self, now_s: float, peer: Address, detail: str) -> list[Effect]:
        tickets = [ticket for ticket, pending in self._pending.items() if pending.transfer.peer == peer]
        effects: list[Effect] = []
        for ticket in tickets:
            if self._pending[ticket].transfer.kind is TransferKind.SLAB_TO_PEER:
                effects += self._end(now_s, ticket, TransferStatus.FAILED, 0, detail)
        return effects

    def _tear(self, transfer: Transfer) -> None:
        """A copy that did not end may have written some of the peer's slots, if the peer lets it write yet."""
        if transfer.peer is None or self._network is None or transfer.payload is not Payload.KV:
            return
        peer = self._met.get(transfer.peer)
        if peer is None or peer is not self._network.ends.get(transfer.peer):
            return
        is_shut = transfer.peer_handle and transfer.peer_handle not in peer.open_rooms
        if is_shut or peer.audit is None or transfer.peer_layout != peer.layers.layout:
            return
        slots = slots_of_extents(transfer.peer_extent_start, transfer.peer_extent_length)
        peer.audit.copied_in(slots, [TORN] * len(slots), _layers_of(transfer))

    def _refuse(self, transfer: Transfer, detail: str) -> list[Effect]:
        return [Send(self._instance, Unsupported("Transfer", detail, ticket=transfer.ticket))]

    def _own(self) -> PeerEnd | None:
        return self._network.ends.get(self._engine) if self._network is not None else None

    def _bytes(self, transfer: Transfer) -> int:
        region = transfer.region
        if transfer.payload is Payload.ACTIVATION:
            own = self._own()
            count = own.rooms.content(transfer.room).count if own is not None else 0
            return transfer.length_bytes or int(count * self._layer_bytes) + 8
        return int((region.stop - region.start) * (region.layer_stop - region.layer_start) * self._layer_bytes)

    def _checksum(self, transfer: Transfer, content: list[int]) -> int:
        return checksum_of(transfer.region, self._kv_dtype, transfer.chain, content)


def _layers_of(transfer: Transfer) -> frozenset[int]:
    return frozenset(range(transfer.region.layer_start, transfer.region.layer_stop))
