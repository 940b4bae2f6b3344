"""Receives regions by one-sided writes: copies them from the staging memory into the host tier, and hashes the copy.

A peer writes into a lane of the staging memory only; this side alone writes into the tier, and checks its own copy.
So a writer that is late or faulty can spoil a transfer and never a region. Knows no thread and no clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from dunlin.kv.region_identity import signed_digest
from dunlin.messages.exchange import TransferAgent
from dunlin.transport.one_sided.agent import Agent, AgentError
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
from dunlin.transport.one_sided.staging import LanePool, staging_layout
from dunlin.transport.payload import RegionHeader

OnReceived = Callable[[int, int, str], None]


@dataclass(slots=True, eq=False)
class _Coming:
    """One expected region. `there`: chunks in the lane; `taken`: those copied out. No `hasher`: not begun."""

    payload: RegionHeader
    offset_bytes: int
    peer: TransferAgent
    until_s: float
    lane: int | None = None
    hasher: "xxhash.xxh3_64 | None" = None
    there: dict[int, None] = field(default_factory=dict)
    taken: int = 0


class InboundTransfers:
    """Owns the expected regions and their lanes. `received` is called once per expected region."""

    def __init__(
        self, room: memoryview, agent: Agent, received: OnReceived, *, patience_s: float = 10.0, stall_s: float = 5.0
    ) -> None:
        self._room = room
        self._agent = agent
        self._received = received
        self._patience_s = patience_s
        self._stall_s = stall_s
        self._cut = staging_layout(agent.descriptor)
        self._lanes = LanePool(self._cut.lanes)
        self._coming: dict[bytes, _Coming] = {}
        self._queue: dict[bytes, None] = {}
        self._unsure: dict[bytes, tuple[str, int, float]] = {}

    def __len__(self) -> int:
        return len(self._coming)

    @property
    def is_moving(self) -> bool:
        """Whether a lane is in use."""
        return len(self._lanes) < self._cut.lanes

    def peers(self) -> list[str]:
        """The peers from which regions are expected."""
        return list(dict.fromkeys(coming.peer.name for coming in self._coming.values()))

    def expect(self, payload: RegionHeader, offset_bytes: int, peer: TransferAgent, now_s: float) -> None:
        """The peer will begin this region, which belongs at `offset_bytes` of the tier."""
        self._coming[payload.token] = _Coming(payload, offset_bytes, peer, now_s + self._patience_s)

    def abandon(self, token: bytes, now_s: float) -> None:
        """The region is no longer wanted."""
        self._end(token, "abandoned", now_s)

    def peer_gone(self, peer: str, detail: str, now_s: float) -> None:
        """The peer is gone: nothing more comes from it, and its lanes are free."""
        for token in [token for token, coming in self._coming.items() if coming.peer.name == peer]:
            self._end(token, detail, now_s)
        for token in [token for token, (name, _, _) in self._unsure.items() if name == peer]:
            self._free_unsure(token, now_s)

    def on_notice(self, peer: str, notice: Notice, now_s: float) -> None:
        """Take a sender's notice in. A token of another peer's region is ignored."""
        coming = self._coming.get(notice.token)
        if coming is not None and coming.peer.name == peer:
            self._about(coming, notice, now_s)
        elif isinstance(notice, WriteAbandoned) and self._unsure.get(notice.token, ("",))[0] == peer:
            self._free_unsure(notice.token, now_s)
        elif isinstance(notice, WriteRequested):
            self._notify(peer, RegionFinished(notice.token, 0))

    def tick(self, now_s: float) -> None:
        """Give up the regions that did not come in time."""
        for token in [token for token, coming in self._coming.items() if coming.until_s < now_s]:
            began = self._coming[token].hasher is not None
            self._end(token, f"stalled for {self._stall_s:g} s" if began else "nothing came", now_s)
        for token in [token for token, (_, _, until_s) in self._unsure.items() if until_s < now_s]:
            self._free_unsure(token, now_s)

    def _about(self, coming: _Coming, notice: Notice, now_s: float) -> None:
        match notice:
            case WriteRequested():
                self._begin(coming, notice.payload, now_s)
            case ChunkWritten():
                self._chunk(coming, notice.index, now_s)
            case WriteAbandoned():
                self._end(notice.token, "the sender gave up", now_s, is_sure=True)

    def _begin(self, coming: _Coming, payload: RegionHeader, now_s: float) -> None:
        if coming.hasher is not None:
            return
        coming.hasher = xxhash.xxh3_64(payload.identity)
        if payload != coming.payload:
            self._end(payload.token, "another region than was announced", now_s)
            return
        coming.until_s = now_s + self._patience_s
        self._queue[payload.token] = None
        self._give_lanes(now_s)

    def _give_lanes(self, now_s: float) -> None:
        while self._queue and (lane := self._lanes.allocate()) is not None:
            token = next(iter(self._queue))
            del self._queue[token]
            coming = self._coming[token]
            coming.lane, coming.until_s = lane, now_s + self._stall_s
            self._say(coming.peer, LaneGranted(token, lane))
            self._finish_if_whole(coming, now_s)

    def _chunk(self, coming: _Coming, index: int, now_s: float) -> None:
        chunks = self._cut.chunks(coming.payload.length_bytes)
        if coming.lane is None or not coming.taken <= index < min(coming.taken + self._cut.depth, chunks):
            return
        coming.there[index] = None
        coming.until_s = now_s + self._stall_s
        while coming.taken in coming.there:
            self._take(coming)
        self._say(coming.peer, ChunksDrained(coming.payload.token, coming.taken))
        self._finish_if_whole(coming, now_s)

    def _take(self, coming: _Coming) -> None:
        """Copy one chunk out of the lane into the tier, and hash it there."""
        assert coming.lane is not None
        assert coming.hasher is not None
        index = coming.taken
        length = self._cut.length(index, coming.payload.length_bytes)
        start, at = self._cut.incoming(coming.lane, index), coming.offset_bytes + index * self._cut.chunk_bytes
        self._room[at : at + length] = self._agent.staging[start : start + length]
        coming.hasher.update(self._room[at : at + length])
        del coming.there[index]
        coming.taken += 1

    def _finish_if_whole(self, coming: _Coming, now_s: float) -> None:
        if coming.hasher is None or coming.taken < self._cut.chunks(coming.payload.length_bytes):
            return
        matches = signed_digest(coming.hasher.intdigest()) == coming.payload.checksum
        detail = "" if matches else "the bytes do not match their checksum"
        self._end(coming.payload.token, detail, now_s, is_sure=True)

    def _end(self, token: bytes, detail: str, now_s: float, is_sure: bool = False) -> None:
        """End the transfer of a region. `is_sure`: nothing is written into its lane any more."""
        coming = self._coming.pop(token, None)
        if coming is None:
            return
        self._queue.pop(token, None)
        if coming.lane is not None:
            self._unsure[token] = (coming.peer.name, coming.lane, now_s + 2 * self._stall_s)
            if is_sure:
                self._free_unsure(token, now_s)
        if coming.hasher is not None:
            self._say(coming.peer, RegionFinished(token, int(not detail)))
        self._received(coming.payload.handle, coming.payload.generation, detail)

    def _free_unsure(self, token: bytes, now_s: float) -> None:
        _, lane, _ = self._unsure.pop(token)
        self._lanes.release(lane)
        self._give_lanes(now_s)

    def _say(self, peer: TransferAgent, notice: Notice) -> None:
        try:
            self._agent.add_peer(peer)
        except AgentError:
            return
        self._notify(peer.name, notice)

    def _notify(self, name: str, notice: Notice) -> None:
        """Send a notice; a peer that does not get it finds out by its own timeout."""
        try:
            self._agent.notify(name, encode_notice(notice))
        except AgentError:
            pass
