"""The host tier as one instance uses it: a preempted sequence's KV goes there and comes back.

One region per sequence: all layers of its first tokens. Owns what is under way: questions to the kvstore, moves in the
engine. Knows no queue and no reason why a sequence was preempted.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import EngineReady, MapHost, Move
from dunlin.messages.pool import CommitRegion, RegionReserved, ReleaseRegion, ReserveRegion, Tier
from dunlin.messages.types import HostRegion, MoveKind, Priority, Region, Why, i64
from services.instance.sequences import Sequence
from services.instance.slots import Extent


@dataclass(frozen=True, slots=True)
class AnswerDue:
    """The kvstore should have answered this question by now."""

    ticket: int


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
        self._tier: Tier | None = None
        self._ready: EngineReady | None = None
        self._asked: dict[int, Sequence] = {}
        self._moves: dict[int, Sequence] = {}
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
        return len(self._moves)

    def open(self, kvstore: Address, tier: Tier) -> list[Effect]:
        """The kvstore says where its memory is."""
        self._kvstore, self._tier = kvstore, tier
        self._is_mapped = self._is_silent = False
        return self.map()

    def engine_ready(self, ready: EngineReady) -> list[Effect]:
        """A new engine: nothing is under way in it."""
        self._ready = ready
        return self.map()

    def engine_gone(self) -> None:
        """No move will be answered."""
        self._ready = None
        self._is_mapped = False
        self._moves.clear()

    def close(self, kvstore: Address) -> list[Sequence]:
        """The kvstore is gone; whose questions it will not answer."""
        if kvstore != self._kvstore:
            return []
        self._kvstore = self._tier = None
        self._is_mapped = False
        asked, self._asked = list(self._asked.values()), {}
        return asked

    def unmapped(self) -> list[Sequence]:
        """The engine cannot map the tier: do without it; whose questions need no answer."""
        self._tier, self._is_mapped = None, False
        asked, self._asked = list(self._asked.values()), {}
        return asked

    def size_bytes(self, tokens: int) -> int:
        """Of the region that holds that many tokens."""
        return tokens * self._ready.kv_bytes_per_token if self._ready is not None else 0

    def ask(self, sequence: Sequence, tokens: int, why: Why | None) -> list[Effect]:
        """Ask for room for the first `tokens` tokens."""
        assert self._kvstore is not None
        assert self._ready is not None
        self._numbers += 1
        self._asked[self._numbers] = sequence
        ask = ReserveRegion(
            self._numbers,
            sequence.dispatcher,
            sequence.place.request,
            sequence.place.attempt,
            self._region(tokens),
            self.size_bytes(tokens),
            self._ready.kv_dtype,
            self._ready.weights_digest,
            why,
        )
        return [Send(self._kvstore, ask), After(self._answer_s, AnswerDue(self._numbers))]

    def answered(self, ticket: int) -> Sequence | None:
        """Who asked with this ticket, if it still waits for the answer."""
        self._is_silent = False
        return self._asked.pop(ticket, None)

    def unanswered(self, ticket: int) -> Sequence | None:
        """The time for an answer is over: who waits for it. A late one finds nobody."""
        sequence = self._asked.pop(ticket, None)
        self._is_silent |= sequence is not None
        return sequence

    def withdraw(self, sequence: Sequence) -> None:
        """It does not wait for an answer any more."""
        self._asked = {ticket: asker for ticket, asker in self._asked.items() if asker is not sequence}

    def spill(self, sequence: Sequence, reserved: RegionReserved, tokens: int, extents: list[Extent]) -> list[Effect]:
        """Copy the first `tokens` tokens out into the room that was reserved."""
        sequence.host, sequence.host_tokens, sequence.keeper = reserved.host, tokens, self._kvstore
        return [self._move(MoveKind.SLAB_TO_HOST, sequence, extents)]

    def restore(self, sequence: Sequence, extents: list[Extent]) -> list[Effect]:
        """Copy the sequence's region back into new slots."""
        return [self._move(MoveKind.HOST_TO_SLAB, sequence, extents)]

    def landed(self, move: int) -> Sequence | None:
        """Whose move that was."""
        return self._moves.pop(move, None)

    def commit(self, sequence: Sequence, checksum: int) -> list[Effect]:
        """The copy is whole: the region counts from now on, if its kvstore is still there."""
        host = sequence.host
        assert host is not None
        if sequence.keeper != self._kvstore:
            return self.drop(sequence)
        sequence.host = HostRegion(host.handle, host.generation, host.offset_bytes, host.length_bytes, checksum)
        return self._say(CommitRegion(host.handle, host.generation, checksum))

    def drop(self, sequence: Sequence, corrupt: bool = False) -> list[Effect]:
        """The sequence's region, if it has one, is not needed any more."""
        host, sequence.host, sequence.host_tokens = sequence.host, None, 0
        if host is None or sequence.keeper != self._kvstore:
            return []
        self.corrupt_total += corrupt
        return self._say(ReleaseRegion(host.handle, host.generation, corrupt))

    def refuse(self, host: HostRegion) -> list[Effect]:
        """Room came for somebody who does not want it any more."""
        return self._say(ReleaseRegion(host.handle, host.generation))

    def map(self) -> list[Effect]:
        """Have the engine map the tier, once both are there and nothing moves."""
        if self._tier is None or self._kvstore is None or self._ready is None or self._is_mapped or self._moves:
            return []
        self._is_mapped = True
        return [Send(self._engine, MapHost(self._tier.path, self._tier.size_bytes, self._kvstore.incarnation))]

    def _say(self, message: CommitRegion | ReleaseRegion) -> list[Effect]:
        return [Send(self._kvstore, message)] if self._kvstore is not None else []

    def _region(self, tokens: int) -> Region:
        assert self._ready is not None
        return Region(0, len(self._ready.layers), 0, tokens)

    def _move(self, kind: MoveKind, sequence: Sequence, extents: list[Extent]) -> Send:
        self._numbers += 1
        self._moves[self._numbers] = sequence
        starts, lengths = i64([first for first, _ in extents]), i64([length for _, length in extents])
        region = self._region(sequence.host_tokens)
        move = Move(self._numbers, kind, sequence.number, region, starts, lengths, sequence.host, priority=Priority.KV)
        return Send(self._engine, move)
