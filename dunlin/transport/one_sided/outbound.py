"""Writes regions of the tier into peers' staging memory: a few per peer at a time, the most urgent first.

A region goes through one of this side's own lanes, so that no memory but the staging is ever registered. Knows no
thread and no clock.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import Priority
from dunlin.transport.one_sided.agent import Agent, AgentError, Write, WriteState
from dunlin.transport.one_sided.notices import (
    ChunksDrained,
    ChunkWritten,
    LaneGranted,
    Notice,
    RegionFinished,
    WriteAbandoned,
    WriteRequested,
    encode_notice,
)
from dunlin.transport.one_sided.staging import LanePool, StagingLayout, staging_layout
from dunlin.transport.payload import PayloadError, RegionHeader

PER_PEER = 4
"""Regions under way to one peer at once: one alone would spend most of its time waiting for notices."""

OnSent = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class OneSidedSend:
    """`payload.length_bytes` from `offset_bytes` of the tier, for the agent `to`."""

    ticket: int
    to: TransferAgent
    payload: RegionHeader
    offset_bytes: int


@dataclass(slots=True, eq=False)
class _Going:
    """A region under way. `lane` is our own; `granted` the peer's, once it gave one; `writes` by chunk."""

    what: OneSidedSend
    theirs: StagingLayout
    lane: int
    until_s: float
    granted: int | None = None
    written: int = 0
    taken: int = 0
    writes: dict[int, Write] = field(default_factory=dict)


class OutboundTransfers:
    """Owns the consignments that wait or are under way, and their lanes. `sent` is called once per consignment."""

    def __init__(
        self, room: memoryview, agent: Agent, sent: OnSent, *, patience_s: float = 10.0, stall_s: float = 5.0
    ) -> None:
        self._room = room
        self._agent = agent
        self._sent = sent
        self._patience_s = patience_s
        self._stall_s = stall_s
        self._cut = staging_layout(agent.descriptor)
        self._lanes = LanePool(self._cut.lanes)
        self._orders = itertools.count()
        self._waiting: dict[str, list[tuple[int, int, OneSidedSend]]] = {}
        self._going: dict[bytes, _Going] = {}

    def __len__(self) -> int:
        """Consignments that are not over."""
        return len(self._going) + sum(len(queue) for queue in self._waiting.values())

    @property
    def is_moving(self) -> bool:
        """Whether a region is under way."""
        return bool(self._going)

    def peers(self) -> list[str]:
        """The peers to which regions go or wait to go."""
        under_way = (going.what.to.name for going in self._going.values())
        return list(dict.fromkeys((*under_way, *self._waiting)))

    def submit(self, what: OneSidedSend, priority: Priority, now_s: float) -> None:
        """Queue a consignment."""
        queue = self._waiting.setdefault(what.to.name, [])
        heapq.heappush(queue, (priority, next(self._orders), what))
        self._start(now_s)

    def peer_gone(self, peer: str, detail: str, now_s: float) -> None:
        """The peer is gone: nothing goes there any more."""
        waiting = self._waiting.pop(peer, [])
        self._end_all(peer, detail)
        for _, _, what in sorted(waiting):
            self._sent(what.ticket, detail)
        self._start(now_s)

    def on_notice(self, peer: str, notice: Notice, now_s: float) -> None:
        """Take a receiver's notice in."""
        going = self._going.get(notice.token)
        if going is None or going.what.to.name != peer:
            return
        going.until_s = now_s + self._stall_s
        match notice:
            case LaneGranted():
                if going.granted is None and 0 <= notice.lane < going.theirs.lanes:
                    going.granted = notice.lane
            case ChunksDrained():
                going.taken = max(going.taken, min(notice.count, going.written))
            case RegionFinished():
                self._end(notice.token, "" if notice.whole else f"{peer} refused it")
                self._start(now_s)

    def tick(self, now_s: float) -> None:
        """Begin the writes that can begin; leave peers that were silent for too long or that writes do not reach."""
        for token in list(self._going):
            going = self._going.get(token)
            if going is None:
                continue  # it ended with another one of its peer
            peer, detail = going.what.to.name, self._advance(going)
            if not detail and going.until_s < now_s:
                detail = f"{peer} said nothing for {self._stall_s:g} s"
            if detail:
                self._end_all(peer, detail)
                self._agent.remove_peer(peer)  # the next one meets it anew
        self._start(now_s)

    def _start(self, now_s: float) -> None:
        """The next consignments of every peer in turn, while there are lanes."""
        for count in range(PER_PEER):
            for peer in list(self._waiting):
                if not len(self._lanes):
                    return
                if self._count(peer) <= count:
                    self._start_next(peer, now_s)

    def _start_next(self, peer: str, now_s: float) -> None:
        _, _, what = heapq.heappop(self._waiting[peer])
        if not self._waiting[peer]:
            del self._waiting[peer]
        detail = self._begin(what, now_s)
        if detail:
            self._sent(what.ticket, detail)

    def _count(self, peer: str) -> int:
        return sum(going.what.to.name == peer for going in self._going.values())

    def _begin(self, what: OneSidedSend, now_s: float) -> str:
        if what.payload.token in self._going:
            return "its token is in use"
        try:
            theirs = staging_layout(what.to)
            if theirs.chunk_bytes > self._cut.chunk_bytes:
                raise ValueError(f"its chunks of {theirs.chunk_bytes} bytes are longer than ours")
            notice = encode_notice(WriteRequested(what.payload))
            self._agent.add_peer(what.to)
            self._agent.notify(what.to.name, notice)
        except (AgentError, PayloadError, ValueError) as error:
            return f"{what.to.name} cannot be reached: {error}"
        lane = self._lanes.allocate()
        assert lane is not None
        self._going[what.payload.token] = _Going(what, theirs, lane, now_s + self._patience_s)
        return ""

    def _advance(self, going: _Going) -> str:
        """Advance one region; returns what went wrong, empty for nothing."""
        try:
            for index, write in list(going.writes.items()):
                state = self._agent.state(write)
                if state is not WriteState.PENDING:
                    self._agent.release(going.writes.pop(index))
                if state is WriteState.FAILED:
                    return f"a write to {going.what.to.name} failed"
            while self._may_write(going):
                self._write(going)
        except AgentError as error:
            return f"{going.what.to.name} was lost: {error}"
        return ""

    def _may_write(self, going: _Going) -> bool:
        ahead = going.written - going.taken
        return (
            going.granted is not None
            and going.written < self._chunks(going)
            and ahead < min(self._cut.depth, going.theirs.depth)
            and len(going.writes) < self._cut.depth
            and all(index % self._cut.depth != going.written % self._cut.depth for index in going.writes)
        )

    def _chunks(self, going: _Going) -> int:
        return going.theirs.chunks(going.what.payload.length_bytes)

    def _write(self, going: _Going) -> None:
        assert going.granted is not None
        what, index = going.what, going.written
        length = going.theirs.length(index, what.payload.length_bytes)
        start, at = self._cut.outgoing(going.lane, index), what.offset_bytes + index * going.theirs.chunk_bytes
        self._agent.staging[start : start + length] = self._room[at : at + length]
        address = what.to.address + going.theirs.incoming(going.granted, index)
        notice = encode_notice(ChunkWritten(what.payload.token, index))
        going.writes[index] = self._agent.write(what.to.name, start, address, length, notice)
        going.written += 1

    def _end_all(self, peer: str, detail: str) -> None:
        for token in [token for token, going in self._going.items() if going.what.to.name == peer]:
            self._end(token, detail)

    def _end(self, token: bytes, detail: str) -> None:
        going = self._going.pop(token)
        has_left = bool(detail) and not going.writes
        for write in going.writes.values():
            try:
                self._agent.release(write)
            except AgentError:
                pass  # the peer is gone, and the library with what was on its way there
        self._lanes.release(going.lane)
        if has_left:  # else a write may still arrive, and the receiver waits until none can
            self._say_left(going.what.to.name, token)
        self._sent(going.what.ticket, detail)

    def _say_left(self, peer: str, token: bytes) -> None:
        try:
            self._agent.notify(peer, encode_notice(WriteAbandoned(token)))
        except AgentError:
            pass  # it finds out by its own time
