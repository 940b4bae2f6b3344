"""Client of the node's host tier: reserves room at the kvstore, has the engine copy regions, and commits them.

Knows of a sequence only what its regions are about; `lifecycle.py` and `checkpointer.py` decide when regions are copied
out, restored or released. `tickets.py` matches each answer to its request.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.kv import prefix_hash
from dunlin.messages.engine import CancelTransfer, EngineReady, MapHost, Transfer
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    PendingWrites,
    ReleaseRegion,
    ReserveRegion,
    SendRegions,
    TierReady,
)
from dunlin.messages.types import HostRegion, KeptRegion, Priority, Region, TransferKind, Why, i64
from services.instance.kv.residency import Extent
from services.instance.kv.tickets import (
    ArrivalCheck,
    ArrivalClaim,
    ArrivalTransfer,
    HostClaim,
    HostReservation,
    PeerCopy,
    PendingTransfer,
    Question,
    RegionTransfer,
    Tickets,
    TransferPurpose,
)
from services.instance.kv.whole_regions import all_layers, group_whole
from services.instance.sequence.sequence import KeptHostRegion, Sequence


@dataclass(frozen=True, slots=True)
class HostCacheTimeout:
    """The kvstore should have answered this question by now."""

    ticket: int


class HostCacheClient:
    """Sends the requests of the pool protocol, tracks the copies. `restored_total` and `corrupt_total` count regions.

    A region belongs to the kvstore process that gave the room: no other hears of it. The engine maps a new tier only
    when no copy is under way, which would go to the wrong memory. A kvstore that did not answer in time gets no further
    request before it has answered.
    """

    def __init__(self, engine: Address, answer_s: float) -> None:
        self.restored_total = 0
        self.corrupt_total = 0
        self.engine = engine
        self._answer_s = answer_s
        self._kvstore: Address | None = None
        self._previous_kvstore: Address | None = None
        self._memory: TierReady | None = None
        self._ready: EngineReady | None = None
        self.tickets = Tickets()
        self._is_engine_there = False
        self._is_mapped = False
        self._is_silent = False

    @property
    def usable(self) -> bool:
        """Whether a region can be asked for."""
        return self._is_mapped and not self._is_silent

    @property
    def kvstore(self) -> Address | None:
        """The kvstore whose host tier is in use; None without one."""
        return self._kvstore

    @property
    def pending_moves(self) -> int:
        """Moves that the engine has not answered."""
        return len([*self.tickets.of(PendingTransfer), *self.tickets.of(ArrivalTransfer)])

    @property
    def outstanding(self) -> int:
        """Transfers of any kind that the engine has not answered."""
        return self.pending_moves + len([*self.tickets.of(PeerCopy), *self.tickets.of(ArrivalCheck)])

    # --- kvstore and engine ---

    def is_pending_move(self, ticket: int) -> bool:
        """Whether the engine has not answered the transfer with that ticket."""
        return any(
            self.tickets.is_waiting(ticket, kind) for kind in (PendingTransfer, ArrivalTransfer, PeerCopy, ArrivalCheck)
        )

    def is_superseded(self, kvstore: Address) -> bool:
        """Whether a newer process of that name is known: this one slept, and the memory is not its own any more."""
        newer = (one for one in (self._kvstore, self._previous_kvstore) if one is not None and one.name == kvstore.name)
        return any(kvstore.incarnation < one.incarnation for one in newer)

    def connect(self, kvstore: Address, tier: TierReady) -> list[Effect]:
        """Use the memory of this kvstore. One that was lost and is back gets the list of pending writes."""
        self._kvstore, self._memory = kvstore, tier
        self._is_mapped = self._is_silent = False
        writing = [self._pending_writes(kvstore)] if kvstore == self._previous_kvstore else []
        return [*writing, *self.map_memory()]

    def on_engine_ready(self, ready: EngineReady) -> list[Effect]:
        """A new engine is ready: no copy is under way in it."""
        self._ready, self._is_engine_there = ready, True
        return self.map_memory()

    def on_layers_changed(self, ready: EngineReady) -> None:
        """The engine has other layers or slots: later copies name its new layout."""
        self._ready = ready

    def on_engine_lost(self) -> list[Effect]:
        """The engine is lost: no copy will be answered, and unfinished copies are discarded."""
        self._is_engine_there = False
        self._is_mapped = False
        self.tickets.take_all(ArrivalTransfer)
        effects: list[Effect] = []
        for move in self.tickets.take_all(PendingTransfer):
            effects += self.release_uncommitted(move) if move.purpose is not TransferPurpose.RESTORE else []
        return effects

    def disconnect(self, kvstore: Address) -> list[Question]:
        """The kvstore is gone; returns the questions of sequences that it will not answer."""
        if kvstore != self._kvstore:
            return []
        self._kvstore, self._previous_kvstore = None, kvstore
        return self.on_memory_unmapped()

    def on_memory_unmapped(self) -> list[Question]:
        """The engine cannot map the host tier: use none; returns the questions of sequences that get no answer."""
        self._memory, self._is_mapped = None, False
        self.tickets.take_all(ArrivalClaim)
        self.tickets.take_all(RegionTransfer)
        return self.tickets.take_all(Question)

    def map_memory(self) -> list[Effect]:
        """Have the engine map the host tier, once both are there and no copy is under way."""
        if (
            self._memory is None
            or self._kvstore is None
            or not self._is_engine_there
            or self._is_mapped
            or self.pending_moves
        ):
            return []
        self._is_mapped = True
        return [Send(self.engine, MapHost(self._memory.path, self._memory.size_bytes, self._kvstore.incarnation))]

    def is_pending(self, purpose: TransferPurpose) -> bool:
        """Whether room is asked for, or a region is being copied, for that purpose."""
        reserving = any(reservation.purpose is purpose for _, reservation in self.tickets.of(HostReservation))
        return reserving or any(move.purpose is purpose for _, move in self.tickets.of(PendingTransfer))

    def is_busy_with(self, sequence: Sequence) -> bool:
        """Whether a question or a move about it is open."""
        asks = any(question.sequence is sequence for _, question in self.tickets.of(Question))
        return asks or any(move.sequence is sequence for _, move in self.tickets.of(PendingTransfer))

    # --- questions ---

    def size_bytes(self, tokens: int) -> int:
        """Of the region that holds that many tokens."""
        return tokens * self._ready.kv_bytes_per_token if self._ready is not None else 0

    def chain_hash(self, sequence: Sequence, stop: int) -> bytes:
        """The name of its first `stop` tokens."""
        assert self._ready is not None
        place = sequence.place
        start = prefix_hash.chain_root(place.tenant, self._ready.weights_digest, adapter=place.adapter)
        return sequence.chains.chain_at(start, sequence.tokens, stop)

    def reserve_region(
        self, sequence: Sequence, stop: int, purpose: TransferPurpose, priority: Priority, why: Why | None
    ) -> list[Effect]:
        """Ask for room for the tokens from the end of what is kept up to `stop`."""
        assert self._ready is not None
        region = Region(0, len(all_layers(self._ready)), sequence.kept_tokens, stop)
        chain = self.chain_hash(sequence, stop)
        ticket = self.tickets.add(HostReservation(sequence, purpose, region, chain, priority))
        place = sequence.place
        reserve = ReserveRegion(
            ticket,
            sequence.dispatcher,
            place.request,
            place.attempt,
            region,
            self.size_bytes(region.stop - region.start),
            self._ready.kv_dtype,
            self._ready.weights_digest,
            why,
            sequence.public_key,
            chain,
            priority,
        )
        return self._send_request(ticket, reserve)

    def claim_regions(self, sequence: Sequence, why: Why | None) -> list[Effect]:
        """Claim the regions that earlier attempts of the same request left in the host tier."""
        assert self._ready is not None
        place, ready = sequence.place, self._ready
        names = (sequence.public_key, sequence.dispatcher, place.request, place.attempt)
        ticket = self.tickets.add(HostClaim(sequence))
        return self._send_request(ticket, FindRegions(ticket, *names, ready.weights_digest, ready.kv_dtype, why))

    def claim_for_reservation(
        self, handle: int, key: str, dispatcher: Address, request: int, attempt: int
    ) -> list[Effect]:
        """Claim the regions of a request that lie here, for the incoming migration `handle`."""
        assert self._kvstore is not None
        assert self._ready is not None
        names = (key, dispatcher, request, attempt, self._ready.weights_digest, self._ready.kv_dtype)
        return [Send(self._kvstore, FindRegions(self.tickets.add(ArrivalClaim(handle)), *names))]

    def send_regions(self, migration: int, key: str, to: Address, why: Why) -> list[Effect]:
        """Have the kept regions of a request copied to another kvstore, for the outgoing migration of that number."""
        assert self._kvstore is not None
        ticket = self.tickets.add(RegionTransfer(migration))
        return [Send(self._kvstore, SendRegions(ticket, key, to, Priority.KV, why))]

    def reserved_or_refused(self, ticket: int) -> HostReservation | None:
        """The kvstore answered: the reservation that waits for that room, if one does."""
        self._is_silent = False
        return self.tickets.take(ticket, HostReservation)

    def found(self, ticket: int) -> HostClaim | ArrivalClaim | None:
        """The kvstore answered: the claim that waits for those regions, if one does."""
        self._is_silent = False
        return self.tickets.take(ticket, HostClaim) or self.tickets.take(ticket, ArrivalClaim)

    def resolve_send(self, ticket: int) -> RegionTransfer | None:
        """The kvstore answered: the migration that waits for that transfer, if one does."""
        return self.tickets.take(ticket, RegionTransfer)

    def time_out(self, ticket: int) -> Question | None:
        """The time for an answer is over: the question, if it is open. A late answer finds no waiter."""
        question = self.tickets.take(ticket, Question)
        self._is_silent |= question is not None
        return question

    def cancel_requests(self, sequence: Sequence) -> None:
        """Drop the open questions of a sequence; it waits for no claim any more."""
        self.tickets.withdraw(sequence)
        sequence.is_claiming = False

    # --- moves ---

    def copy_out(
        self, reservation: HostReservation, host: HostRegion, extents: list[Extent], priority: Priority
    ) -> list[Effect]:
        """Copy a region out into the room that was reserved for it."""
        assert self._kvstore is not None
        kept = KeptHostRegion(reservation.region, host, self._kvstore, reservation.chain)
        return [
            self._send_move(
                TransferKind.SLAB_TO_HOST, reservation.sequence, reservation.purpose, kept, extents, priority
            )
        ]

    def copy_in(self, sequence: Sequence, kept: KeptHostRegion, extents: list[Extent]) -> list[Effect]:
        """Copy one of the sequence's regions into new slots."""
        return [
            self._send_move(TransferKind.HOST_TO_SLAB, sequence, TransferPurpose.RESTORE, kept, extents, Priority.KV)
        ]

    def copy_into_reservation(self, handle: int, kept: KeptRegion, extents: list[Extent]) -> list[Effect]:
        """Copy a region into slots that no sequence has yet: those of the incoming migration `handle`."""
        ticket = self.tickets.add(ArrivalTransfer(handle))
        return [self._move_message(ticket, TransferKind.HOST_TO_SLAB, 0, kept, extents, Priority.KV)]

    def is_restoring(self, sequence: Sequence, start: int) -> bool:
        """Whether a region of the sequence that starts at `start` is being copied into its slots."""
        moves = (move for _, move in self.tickets.of(PendingTransfer) if move.purpose is TransferPurpose.RESTORE)
        return any(move.sequence is sequence and move.kept.region.start == start for move in moves)

    def cancel_copies(self, sequence: Sequence) -> list[Effect]:
        """Stop what is copied beside the sequence's steps, checkpoints and copies to peers; the engine still answers,
        and touches no slot meanwhile.
        """
        moves = [(ticket, move) for ticket, move in self.tickets.of(PendingTransfer) if move.sequence is sequence]
        tickets = [ticket for ticket, move in moves if move.purpose is TransferPurpose.CHECKPOINT]
        tickets += [ticket for ticket, copy in self.tickets.of(PeerCopy) if copy.sequence is sequence]
        return [Send(self.engine, CancelTransfer(ticket)) for ticket in tickets]

    def cancel_restores(self, sequence: Sequence) -> list[Effect]:
        """Stop copying the sequence's regions into its slots; the engine still answers, and writes none after that."""
        moves = [(ticket, move) for ticket, move in self.tickets.of(PendingTransfer) if move.sequence is sequence]
        restores = [ticket for ticket, move in moves if move.purpose is TransferPurpose.RESTORE]
        return [Send(self.engine, CancelTransfer(ticket)) for ticket in restores]

    def resolve_move(self, ticket: int) -> PendingTransfer | ArrivalTransfer | PeerCopy | ArrivalCheck | None:
        """The engine answered: the copy or check that ended, if it is known."""
        host = self.tickets.take(ticket, PendingTransfer) or self.tickets.take(ticket, ArrivalTransfer)
        return host or self.tickets.take(ticket, PeerCopy) or self.tickets.take(ticket, ArrivalCheck)

    # --- what is kept ---

    def commit(self, move: PendingTransfer, checksum: int) -> list[Effect]:
        """The copy is whole: the region counts from now on, if its kvstore is still there."""
        kept, sequence = move.kept, move.sequence
        if kept.keeper != self._kvstore:
            return []
        host = kept.host
        host = HostRegion(host.handle, host.generation, host.offset_bytes, host.length_bytes, checksum)
        sequence.kept.append(KeptHostRegion(kept.region, host, kept.keeper, kept.chain))
        return [Send(self._kvstore, CommitRegion(host.handle, host.generation, checksum))]

    def attach_regions(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """Keep the regions that cover the sequence's own tokens from the first on, in every layer, as far as it may
        take KV that was computed elsewhere; release the others.
        """
        assert self._kvstore is not None
        assert self._ready is not None
        groups, useless = group_whole(regions, all_layers(self._ready))
        most, length = sequence.reusable_most, len(sequence.tokens)
        most = length if most == length - 1 else most
        for group in groups:
            region, chain = group[0].region, group[0].chain
            fits = region.start == sequence.kept_tokens and region.stop <= most
            if fits and chain == self.chain_hash(sequence, region.stop):
                sequence.kept += [KeptHostRegion(one.region, one.host, self._kvstore, one.chain) for one in group]
            else:
                useless += group
        return self.release_all(useless)

    def truncate(self, sequence: Sequence, start: int = 0, corrupt: bool = False) -> list[Effect]:
        """Release the kept regions from token `start` on; `corrupt`: the first of them was damaged."""
        effects: list[Effect] = []
        while sequence.kept and sequence.kept[-1].region.stop > start:
            kept = sequence.kept.pop()
            if kept.keeper == self._kvstore:
                is_first = not sequence.kept or sequence.kept[-1].region.stop <= start
                self.corrupt_total += corrupt and is_first
                effects += self.release(kept.host, corrupt and is_first)
        return effects

    def release_uncommitted(self, move: PendingTransfer) -> list[Effect]:
        """Release reserved room whose copy is not wanted; the engine does not write there any more."""
        return self.release(move.kept.host) if move.kept.keeper == self._kvstore else []

    def release(self, host: HostRegion, corrupt: bool = False) -> list[Effect]:
        """Give room back to the kvstore."""
        if self._kvstore is None:
            return []
        return [Send(self._kvstore, ReleaseRegion(host.handle, host.generation, corrupt))]

    def release_all(self, regions: Iterable[KeptRegion]) -> list[Effect]:
        """Give the room of all these regions back to the kvstore."""
        effects: list[Effect] = []
        for region in regions:
            effects += self.release(region.host)
        return effects

    def _pending_writes(self, kvstore: Address) -> Send:
        """The regions of that memory that the engine may still write."""
        moves = [move for _, move in self.tickets.of(PendingTransfer) if move.purpose is not TransferPurpose.RESTORE]
        hosts = [move.kept.host for move in moves if move.kept.keeper == kvstore]
        return Send(
            kvstore, PendingWrites(i64([host.handle for host in hosts]), i64([host.generation for host in hosts]))
        )

    def _send_request(self, ticket: int, message: ReserveRegion | FindRegions) -> list[Effect]:
        assert self._kvstore is not None
        return [Send(self._kvstore, message), After(self._answer_s, HostCacheTimeout(ticket))]

    def _send_move(
        self,
        kind: TransferKind,
        sequence: Sequence,
        purpose: TransferPurpose,
        kept: KeptHostRegion,
        extents: list[Extent],
        priority: Priority,
    ) -> Send:
        ticket = self.tickets.add(PendingTransfer(sequence, purpose, kept, sequence.number))
        return self._move_message(ticket, kind, sequence.number, kept, extents, priority)

    def _move_message(
        self,
        ticket: int,
        kind: TransferKind,
        sequence: int,
        kept: KeptHostRegion | KeptRegion,
        extents: list[Extent],
        priority: Priority,
    ) -> Send:
        starts, lengths = i64([first for first, _ in extents]), i64([length for _, length in extents])
        layout = self._ready.layout if self._ready is not None else 0
        named = (kept.region, starts, lengths, kept.host)
        move = Transfer(ticket, kind, sequence, *named, priority=priority, chain=kept.chain, layout=layout)
        return Send(self.engine, move)
