"""Processes with one-sided transfers over plain memory, that look in turn and at exact times."""

import random
from dataclasses import replace
from typing import Any

import xxhash

from dunlin.kv.region_identity import signed_digest
from dunlin.messages.types import Priority, Region
from dunlin.transport.one_sided.inbound import InboundTransfers
from dunlin.transport.one_sided.notices import (
    ChunkWritten,
    Notice,
    WriteAbandoned,
    WriteRequested,
    decode_notice,
)
from dunlin.transport.one_sided.outbound import OneSidedSend, OutboundTransfers
from dunlin.transport.one_sided.staging import StagingLayout
from dunlin.transport.payload import RegionHeader
from tests.transport.fake_agent import FakeAgent, Hub

ROOM = 4096

CUT = StagingLayout(lanes=2, depth=2, chunk_bytes=64)

RECEIVERS = (WriteRequested, ChunkWritten, WriteAbandoned)


class End:
    """One process: an agent, a tier, both machines; what they told."""

    def __init__(self, hub: Hub, name: str, seed: int, cut: StagingLayout = CUT) -> None:
        self.room = bytearray(random.Random(seed).randbytes(ROOM))
        self.agent = FakeAgent(hub, name, cut)
        self.received: list[tuple[int, int, str]] = []
        self.sent: list[tuple[int, str]] = []
        self.heard: list[Notice] = []
        view = memoryview(self.room)
        self.inbound = InboundTransfers(view, self.agent, lambda *news: self.received.append(news))
        self.outbound = OutboundTransfers(view, self.agent, lambda *news: self.sent.append(news))

    def look(self, now_s: float) -> None:
        for name, data in self.agent.notices():
            notice = decode_notice(data)
            self.heard.append(notice)
            (self.inbound if isinstance(notice, RECEIVERS) else self.outbound).on_notice(name, notice, now_s)
        self.inbound.tick(now_s)
        self.outbound.tick(now_s)


class Net:
    """Ends that look in turn."""

    def __init__(self, *names: str, cut: StagingLayout = CUT) -> None:
        self.hub = Hub()
        self.ends = {name: End(self.hub, name, seed, cut) for seed, name in enumerate(names)}
        self.now_s = 0.0
        self.tickets = 0

    def __getitem__(self, name: str) -> End:
        return self.ends[name]

    def run(self, rounds: int = 60, step_s: float = 0.0) -> None:
        for _ in range(rounds):
            self.now_s += step_s
            for end in self.ends.values():
                end.look(self.now_s)

    def payload(self, source: str, offset: int, length: int, **overrides: Any) -> RegionHeader:
        self.tickets += 1
        plain = RegionHeader(
            bytes([self.tickets]) * 16, self.tickets, 1, Region(0, 2, 0, 9), "float32", b"c", length, 0
        )
        content = bytes(self[source].room[offset : offset + length])
        checksum = signed_digest(xxhash.xxh3_64_intdigest(plain.identity + content))
        return replace(plain, **{"checksum": checksum, **overrides})

    def send(self, source: str, target: str, length: int, at: int = 0, offset: int = 0, **lies: Any) -> RegionHeader:
        """Announce a region and submit it, with `lies` in what is sent."""
        payload = self.payload(source, offset, length)
        self[target].inbound.expect(payload, at, self[source].agent.descriptor, self.now_s)
        self.submit(source, target, replace(payload, **lies), offset)
        return payload

    def submit(
        self, source: str, target: str, payload: RegionHeader, offset: int = 0, priority: Any = Priority.KV
    ) -> None:
        what = OneSidedSend(payload.handle, self[target].agent.descriptor, payload, offset)
        self[source].outbound.submit(what, priority, self.now_s)
