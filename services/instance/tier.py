"""What this instance keeps in the node's host tier: asking the kvstore for room, having the engine copy, committing.

Knows of a sequence only what its regions are about; when it is copied out, back or given up, `lives.py` and
`checkpointer.py` decide.
"""

from dataclasses import dataclass
from enum import Enum

from dunlin import prefix
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import CancelMove, EngineReady, MapHost, Move
from dunlin.messages.pool import CommitRegion, FindRegions, ReleaseRegion, ReserveRegion, SendRegions, Tier, Writing
from dunlin.messages.types import HostRegion, KeptRegion, MoveKind, Priority, Region, Why, i64
from services.instance.sequences import Kept, Sequence
from services.instance.slots import Extent


@dataclass(frozen=True, slots=True)
class AnswerDue:
    """The kvstore should have answered this question by now."""

    ticket: int


class Purpose(Enum):
    """What a question or a move is for."""

    SPILL = "spill"  # a preempted sequence leaves the slab
    RESTORE = "restore"  # a sequence comes into the slab
    CHECKPOINT = "checkpoint"  # a running sequence is copied beside its steps
    CLAIM = "claim"  # a new attempt asks what earlier ones left


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that the kvstore has not answered."""

    sequence: Sequence
    purpose: Purpose
    region: Region
    chain: bytes = b""
    priority: Priority = Priority.KV


@dataclass(frozen=True, slots=True)
class Flight:
    """A move that the engine has not answered. `number` is the sequence's in the engine when it began."""

    sequence: Sequence
    purpose: Purpose
    kept: Kept
    number: int


class HostTier:
    """This instance's side of the Pool conversation. `restored_total` and `corrupt_total` count regions.

    A region belongs to the kvstore process that gave the room: no other hears of it. The engine maps a new tier only
    when no move is under way, which would go to the wrong memory. A kvstore that is silent is not asked again before it
    has spoken.
    """

    def __init__(self, engine: Address, answer_s: float) -> None:
        self.restored_total = 0
        self.corrupt_total = 0
        self._engine = engine
        self._kvstore: Address | None = None
        self._former: Address | None = None
        self._tier: Tier | None = None
        self._ready: EngineReady | None = None
        self._is_engine_there = False
        self._asked: dict[int, Ask] = {}
        self._moves: dict[int, Flight] = {}
        self._rooms: dict[int, int] = {}
        self._sends: dict[int, int] = {}
        self._seeking: dict[int, int] = {}
        self._numbers = 0
        self._answer_s = answer_s
        self._is_mapped = False
        self._is_silent = False

    @property
    def usable(self) -> bool:
        """Whether a region can be asked for."""
        return self._is_mapped and not self._is_silent

    @property
    def kvstore(self) -> Address | None:
        """Whose tier this is, if there is one."""
        return self._kvstore

    @property
    def moves(self) -> int:
        """Moves that the engine has not answered."""
        return len(self._moves) + len(self._rooms)

    # --- who is there ---

    def is_outlived(self, kvstore: Address) -> bool:
        """Whether a newer process of that name was heard of: this one slept, and the memory is not its own any more."""
        newer = (one for one in (self._kvstore, self._former) if one is not None and one.name == kvstore.name)
        return any(kvstore.incarnation < one.incarnation for one in newer)

    def open(self, kvstore: Address, tier: Tier) -> list[Effect]:
        """The kvstore says where its memory is. One that was lost and is back hears what is still written there."""
        self._kvstore, self._tier = kvstore, tier
        self._is_mapped = self._is_silent = False
        writing = [self._writing(kvstore)] if kvstore == self._former else []
        return [*writing, *self.map()]

    def engine_ready(self, ready: EngineReady) -> list[Effect]:
        """A new engine: nothing is under way in it."""
        self._ready, self._is_engine_there = ready, True
        return self.map()

    def engine_gone(self) -> list[Effect]:
        """No move will be answered: what was being copied out is nothing."""
        self._is_engine_there = False
        self._is_mapped = False
        self._rooms.clear()
        flights, self._moves = list(self._moves.values()), {}
        effects: list[Effect] = []
        for flight in flights:
            effects += self.abandon(flight) if flight.purpose is not Purpose.RESTORE else []
        return effects

    def close(self, kvstore: Address) -> list[Ask]:
        """The kvstore is gone; which questions it will not answer."""
        if kvstore != self._kvstore:
            return []
        self._kvstore, self._former = None, kvstore
        return self.unmapped()

    def unmapped(self) -> list[Ask]:
        """The engine cannot map the tier: do without it; which questions need no answer."""
        self._tier, self._is_mapped = None, False
        asked, self._asked = list(self._asked.values()), {}
        self._sends.clear()
        self._seeking.clear()
        return asked

    def map(self) -> list[Effect]:
        """Have the engine map the tier, once both are there and nothing moves."""
        if self._tier is None or self._kvstore is None or not self._is_engine_there or self._is_mapped or self.moves:
            return []
        self._is_mapped = True
        return [Send(self._engine, MapHost(self._tier.path, self._tier.size_bytes, self._kvstore.incarnation))]

    def under_way(self, purpose: Purpose) -> bool:
        """Whether something was asked or is being moved for that purpose."""
        asked = any(ask.purpose is purpose for ask in self._asked.values())
        return asked or any(flight.purpose is purpose for flight in self._moves.values())

    # --- questions ---

    def size_bytes(self, tokens: int) -> int:
        """Of the region that holds that many tokens."""
        return tokens * self._ready.kv_bytes_per_token if self._ready is not None else 0

    def chain(self, sequence: Sequence, stop: int) -> bytes:
        """The name of its first `stop` tokens."""
        assert self._ready is not None
        return sequence.chains.at(prefix.root(sequence.place.tenant, self._ready.weights_digest), sequence.tokens, stop)

    def ask(self, sequence: Sequence, stop: int, purpose: Purpose, priority: Priority, why: Why | None) -> list[Effect]:
        """Ask for room for the tokens from the end of what is kept up to `stop`."""
        assert self._kvstore is not None
        assert self._ready is not None
        region = Region(0, len(self._ready.layers), sequence.kept_tokens, stop)
        ask = Ask(sequence, purpose, region, self.chain(sequence, stop), priority)
        place = sequence.place
        reserve = ReserveRegion(
            self._numbers + 1,
            sequence.dispatcher,
            place.request,
            place.attempt,
            region,
            self.size_bytes(region.stop - region.start),
            self._ready.kv_dtype,
            self._ready.weights_digest,
            why,
            sequence.public_key,
            ask.chain,
            priority,
        )
        return self._question(ask, reserve)

    def find(self, sequence: Sequence, why: Why | None) -> list[Effect]:
        """Claim what earlier attempts of the same request left in the tier."""
        assert self._ready is not None
        region = Region(0, len(self._ready.layers), 0, len(sequence.tokens))
        place, ready = sequence.place, self._ready
        names = (sequence.public_key, sequence.dispatcher, place.request, place.attempt)
        find = FindRegions(self._numbers + 1, *names, ready.weights_digest, ready.kv_dtype, why)
        return self._question(Ask(sequence, Purpose.CLAIM, region), find)

    def answered(self, ticket: int) -> Ask | None:
        """What was asked with this ticket, if its asker still waits for the answer."""
        self._is_silent = False
        return self._asked.pop(ticket, None)

    def unanswered(self, ticket: int) -> Ask | None:
        """The time for an answer is over: what it was about. A late one finds nobody."""
        ask = self._asked.pop(ticket, None)
        self._is_silent |= ask is not None
        return ask

    def withdraw(self, sequence: Sequence) -> None:
        """It does not wait for an answer any more."""
        self._asked = {ticket: ask for ticket, ask in self._asked.items() if ask.sequence is not sequence}

    def is_about(self, sequence: Sequence) -> bool:
        """Whether a question or a move about it is open."""
        asks = any(ask.sequence is sequence for ask in self._asked.values())
        return asks or any(flight.sequence is sequence for flight in self._moves.values())

    # --- moves ---

    def copy_out(self, ask: Ask, host: HostRegion, extents: list[Extent], priority: Priority) -> list[Effect]:
        """Copy a region out into the room that was reserved for it."""
        assert self._kvstore is not None
        kept = Kept(ask.region, host, self._kvstore, ask.chain)
        return [self._move(MoveKind.SLAB_TO_HOST, ask.sequence, ask.purpose, kept, extents, priority)]

    def copy_in(self, sequence: Sequence, kept: Kept, extents: list[Extent]) -> list[Effect]:
        """Copy one of the sequence's regions into new slots."""
        return [self._move(MoveKind.HOST_TO_SLAB, sequence, Purpose.RESTORE, kept, extents, Priority.KV)]

    def copy_into_room(self, handle: int, kept: KeptRegion, extents: list[Extent]) -> list[Effect]:
        """Copy a region into slots that no sequence has yet: the room of `handle`."""
        self._numbers += 1
        self._rooms[self._numbers] = handle
        return [Send(self._engine, _move(self._numbers, MoveKind.HOST_TO_SLAB, 0, kept, extents, Priority.KV))]

    def send(self, asker: int, key: str, to: Address, why: Why) -> list[Effect]:
        """Have what is kept of a request copied to another kvstore; `sent` tells `asker` how much lies there."""
        assert self._kvstore is not None
        self._numbers += 1
        self._sends[self._numbers] = asker
        return [Send(self._kvstore, SendRegions(self._numbers, key, to, Priority.KV, why))]

    def sent(self, ticket: int) -> int | None:
        """Who asked for that to be sent."""
        return self._sends.pop(ticket, None)

    def find_for_room(self, handle: int, key: str, dispatcher: Address, request: int, attempt: int) -> list[Effect]:
        """Claim what lies here of a request, for the room of `handle`."""
        assert self._kvstore is not None
        assert self._ready is not None
        self._numbers += 1
        self._seeking[self._numbers] = handle
        names = (key, dispatcher, request, attempt, self._ready.weights_digest, self._ready.kv_dtype)
        return [Send(self._kvstore, FindRegions(self._numbers, *names))]

    def found_for_room(self, ticket: int) -> int | None:
        """The handle of the room that these regions are for."""
        return self._seeking.pop(ticket, None)

    def landed_in_room(self, move: int) -> int | None:
        """The handle of the room that this move wrote to."""
        return self._rooms.pop(move, None)

    def cancel(self, sequence: Sequence, purpose: Purpose) -> list[Effect]:
        """Stop the sequence's moves of that purpose; the engine still answers them, and touches no slot meanwhile."""
        moves = [
            move for move, flight in self._moves.items() if flight.sequence is sequence and flight.purpose is purpose
        ]
        return [Send(self._engine, CancelMove(move)) for move in moves]

    def landed(self, move: int) -> Flight | None:
        """Whose move that was."""
        return self._moves.pop(move, None)

    # --- what is kept ---

    def commit(self, flight: Flight, checksum: int) -> list[Effect]:
        """The copy is whole: the region counts from now on, if its kvstore is still there."""
        kept, sequence = flight.kept, flight.sequence
        if kept.keeper != self._kvstore:
            return []
        host = kept.host
        host = HostRegion(host.handle, host.generation, host.offset_bytes, host.length_bytes, checksum)
        sequence.kept.append(Kept(kept.region, host, kept.keeper, kept.chain))
        return [Send(self._kvstore, CommitRegion(host.handle, host.generation, checksum))]

    def adopt(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """Keep what of the regions covers the sequence's own tokens from the first on; let the others go."""
        assert self._kvstore is not None
        effects: list[Effect] = []
        for found in regions:
            region, fits = found.region, found.region.start == sequence.kept_tokens
            if fits and region.stop <= len(sequence.tokens) and found.chain == self.chain(sequence, region.stop):
                sequence.kept.append(Kept(region, found.host, self._kvstore, found.chain))
            else:
                effects += self.release(found.host)
        return effects

    def cut(self, sequence: Sequence, start: int = 0, corrupt: bool = False) -> list[Effect]:
        """Let go of what is kept of the tokens from `start` on; `corrupt`: the first of it was damaged."""
        effects: list[Effect] = []
        while sequence.kept and sequence.kept[-1].region.stop > start:
            kept = sequence.kept.pop()
            if kept.keeper == self._kvstore:
                is_first = not sequence.kept or sequence.kept[-1].region.stop <= start
                self.corrupt_total += corrupt and is_first
                effects += self.release(kept.host, corrupt and is_first)
        return effects

    def abandon(self, flight: Flight) -> list[Effect]:
        """Room whose copy nobody wants; the engine writes there no more."""
        return self.release(flight.kept.host) if flight.kept.keeper == self._kvstore else []

    def release(self, host: HostRegion, corrupt: bool = False) -> list[Effect]:
        """Give room back to the kvstore."""
        if self._kvstore is None:
            return []
        return [Send(self._kvstore, ReleaseRegion(host.handle, host.generation, corrupt))]

    def _writing(self, kvstore: Address) -> Send:
        """What the engine may still write in that tier."""
        flights = [flight for flight in self._moves.values() if flight.purpose is not Purpose.RESTORE]
        hosts = [flight.kept.host for flight in flights if flight.kept.keeper == kvstore]
        return Send(kvstore, Writing(i64([host.handle for host in hosts]), i64([host.generation for host in hosts])))

    def _question(self, ask: Ask, message: ReserveRegion | FindRegions) -> list[Effect]:
        assert self._kvstore is not None
        self._numbers += 1
        self._asked[self._numbers] = ask
        return [Send(self._kvstore, message), After(self._answer_s, AnswerDue(self._numbers))]

    def _move(
        self,
        kind: MoveKind,
        sequence: Sequence,
        purpose: Purpose,
        kept: Kept,
        extents: list[Extent],
        priority: Priority,
    ) -> Send:
        self._numbers += 1
        self._moves[self._numbers] = Flight(sequence, purpose, kept, sequence.number)
        return Send(self._engine, _move(self._numbers, kind, sequence.number, kept, extents, priority))


def _move(
    number: int, kind: MoveKind, sequence: int, kept: Kept | KeptRegion, extents: list[Extent], priority: Priority
) -> Move:
    starts, lengths = i64([first for first, _ in extents]), i64([length for _, length in extents])
    return Move(number, kind, sequence, kept.region, starts, lengths, kept.host, priority=priority, chain=kept.chain)
