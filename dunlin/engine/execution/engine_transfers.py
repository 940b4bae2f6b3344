"""The engine's side of transfers: answers their commands, and hands regions that came in to their sequences.

Copies between the pieces of a step and while the engine rests. Knows no step but the number of the running one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dunlin.effects import Address
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.transfer.copy_planner import CopyPlanner
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes, HostMapping
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_arenas import PeerArena, PeerArenas
from dunlin.engine.transfer.peer_link import PeerLink
from dunlin.engine.transfer.room_pipe import PipeReader, PipeWriter
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transfer_queue import EndedTransfer, TransferLimits, TransferQueue
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import (
    CancelTransfer,
    ClosePeerRoom,
    Forget,
    Interrupted,
    MapHost,
    Meet,
    Met,
    Step,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Ints, Payload, TransferKind, TransferStatus

Event = Any
INTO_SLAB = (TransferKind.HOST_TO_SLAB, TransferKind.PEER_TO_SLAB)


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """The own memory that transfers read and write, and what peers may write of it; `access` None: nothing.

    `node` is the node's name in the cluster.
    """

    slab: KvSlab
    rooms: TransitRooms = field(default_factory=TransitRooms)
    access: PeerAccess | None = None
    node: str = ""


class EngineTransfers:
    """Owns the queue of transfers, the mapped host tier and the peers' mapped memory. `sequences` are the open ones."""

    def __init__(
        self,
        own: OwnMemory,
        sequences: Mapping[int, EngineSequence],
        clock: Callable[[], float],
        limits: TransferLimits,
    ) -> None:
        self._sequences = sequences
        self._clock = clock
        self._access = own.access
        self._rooms = own.rooms
        self._tier = HostMapping()
        self.peers = PeerArenas(own.node)
        planner = CopyPlanner(own.slab, own.rooms, self._tier, self.peers)
        self._queue = TransferQueue(planner, clock, limits)
        # Transfers that did not land, by ticket, with the sequence whose rows must not run on them.
        self._failed: dict[int, int] = {}
        self._turned_s = clock()

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._queue

    @property
    def has_work(self) -> bool:
        """Whether a chunk can be copied now."""
        return self._queue.has_work

    def spoiled(self, tickets: Sequence[int]) -> set[int]:
        """The sequences whose KV these transfers failed to bring."""
        return {self._failed[ticket] for ticket in tickets if ticket in self._failed}

    def forget(self, sequence: int) -> None:
        """The sequence is closed."""
        self._failed = {ticket: each for ticket, each in self._failed.items() if each != sequence}

    # --- commands ---

    def add(self, message: Transfer, is_written: bool) -> list[Event]:
        """Queue a transfer. `is_written`: no step that is to come writes its bytes."""
        try:
            self._queue.add(message, is_written=is_written)
        except TransferError as error:
            return [Unsupported("Transfer", str(error), ticket=message.ticket)]
        return []

    def on_cancel(self, message: CancelTransfer) -> list[Event]:
        """Stop a transfer that has not ended."""
        ended = self._queue.cancel(message.ticket)
        return [] if ended is None else [self._land(ended)]

    def on_map_host(self, message: MapHost) -> list[Event]:
        """Map the node's host tier."""
        try:
            self._tier.map(message)
        except (OSError, ValueError) as error:
            return [Unsupported("MapHost", f"{message.path} of {message.size_bytes} bytes: {error}")]
        return []

    def on_meet(self, message: Meet) -> list[Event]:
        """Map a peer's memory; transfers into what was mapped of it before fail."""
        events: list[Event] = self._drop(message)
        try:
            self.peers.meet(message.peer, message.metadata)
        except TransferError as error:
            return [*events, Met(message.peer, str(error))]
        return [*events, Met(message.peer)]

    def on_forget(self, message: Forget) -> list[Event]:
        """Write no more into the peer's memory, and let no peer write here that does not meet this engine anew."""
        events: list[Event] = self._drop(message)
        if self._access is None:
            return events
        self._access.renew()
        return [*events, Met(message.peer, agent=self._access.agent)]

    def on_layout_changed(self) -> list[Event]:
        """The slab has other slots: transfers whose own ones are gone fail."""
        return self._land_all(self._queue.layout_changed())

    def on_close_room(self, message: ClosePeerRoom) -> list[Event]:
        """Wait for the chunk that a peer is writing into the room; its instance has closed it."""
        if self._access is not None:
            self._access.close_room(message.handle)
        return []

    def land_as(self, done: TransferDone) -> None:
        """A transfer that another rank copies for all has ended so."""
        ended = self._queue.cancel(done.ticket)
        if ended is not None:
            self._land(EndedTransfer(ended.transfer, done))

    # --- steps with peers ---

    def links(self, peers: Sequence[Address], own: Ints, theirs: Ints, exchange: int) -> list[PeerLink]:
        """The ways between a step of this engine and those of its peers; opens the own rooms for them, all or none.

        :raises TransferError: a peer was not met, or there is no such room.
        """
        arenas = [self.peers.of(peer) for peer in peers]
        rooms = [self._rooms.view(room, self._rooms.room_bytes) for room in own]
        there = [arena.room_memory(room) for arena, room in zip(arenas, theirs, strict=True)]
        return [_link(*way, exchange) for way in zip(arenas, rooms, there, strict=True)]

    def give_up_exchange(self, step: Step) -> None:
        """A step with peers ends before it has begun: what they share with it need not be waited for."""
        for peer, room in zip(step.peers, step.peer_room, strict=True):
            try:
                arena = self.peers.of(peer)
                PipeWriter(arena.room_memory(room), step.exchange, arena.alive).give_up()
            except TransferError:  # it is gone itself
                continue

    # --- copying ---

    def work_idle(self) -> list[Event]:
        """Copy one chunk: no step waits."""
        return self._land_all(self._queue.work_idle())

    def work_before_step(self, last_step_s: float) -> list[Event]:
        """Copy what may be copied before a step, beside steps like the last one: idle time allows no more of it."""
        return self._land_all(self._queue.work_in_step(last_step_s)) if self.has_work else []

    def step_goes_on(self) -> None:
        """The time of the next turn at a safepoint counts from now."""
        if len(self):
            self._turned_s = self._clock()

    def work_at_safepoint(self) -> list[Event]:
        """Copy what may be copied after the time since the last turn, or since the step went on."""
        if not self.has_work:
            return []
        ended = self._queue.work_in_step(self._clock() - self._turned_s)
        self._turned_s = self._clock()
        return self._land_all(ended)

    def layers_written(self, step: int, stop: int) -> None:
        """The running step has written its layers below `stop`."""
        self._queue.layers_written(step, stop)

    def with_steps(self, events: Sequence[Event]) -> list[Event]:
        """Events of steps, after the answers of transfers behind rows that did not run to their end."""
        ended: list[EndedTransfer] = []
        for event in events:
            if isinstance(event, Interrupted):
                for step, sequence in zip(event.step, event.sequence, strict=True):
                    ended += self._queue.step_left(step, [sequence])
            elif isinstance(event, StepDone):
                ended += self._queue.step_left(event.step, [*event.dropped, *event.left])
                self._queue.layers_written(event.step, None)
            elif isinstance(event, Unsupported):
                ended += self._queue.step_left(event.step, None)
        return [*self._land_all(ended), *events]

    def _drop(self, message: Meet | Forget) -> list[Event]:
        self.peers.forget(message.peer)
        return self._land_all(self._queue.forget_peer(message.peer))

    def _land_all(self, ended: Sequence[EndedTransfer]) -> list[Event]:
        return [self._land(each) for each in ended]

    def _land(self, ended: EndedTransfer) -> TransferDone:
        """A region that came in is its sequence's from now on; one that did not stops the rows that wait for it."""
        transfer, done = ended.transfer, ended.done
        if transfer.payload is not Payload.KV:
            is_sent = transfer.kind is TransferKind.SLAB_TO_PEER
            if is_sent == (done.status is TransferStatus.OK) and 1 <= transfer.room <= self._rooms.count:
                self._rooms.clear(transfer.room)  # it is at the peer; or what came is not what was sent
            return done
        if transfer.kind not in INTO_SLAB:
            return done
        if done.status is TransferStatus.OK and transfer.sequence:
            done = self._adopt(transfer, done)  # without a sequence: a later `Open` names the slots
        if done.status is not TransferStatus.OK and transfer.sequence in self._sequences:
            self._failed[transfer.ticket] = transfer.sequence
        return done

    def _adopt(self, transfer: Transfer, done: TransferDone) -> TransferDone:
        state, region = self._sequences.get(transfer.sequence), transfer.region
        if state is None:
            return replace(done, status=TransferStatus.FAILED, detail=f"sequence {transfer.sequence} is not open")
        layers, position = range(region.layer_start, region.layer_stop), region.start
        if state.valid.tokens(layers) < region.start:
            return replace(done, status=TransferStatus.FAILED, detail=f"the KV before token {region.start} is not here")
        for start, length in zip(transfer.extent_start, transfer.extent_length, strict=True):
            if state.slots.matching(position, start, length) < length:
                state.valid.limit(region.start)  # in the other layers these slots hold something else
                state.slots.assign(position, start, length)
            position += length
        state.valid.set(layers, position)
        return done


def _link(peer: PeerArena, room: Bytes, peer_room: Bytes, exchange: int) -> PeerLink:
    """Opens the own room."""
    writer = PipeWriter(peer_room, exchange, peer.alive)
    return PeerLink(PipeReader(room, exchange), writer, lambda: peer.is_met)
