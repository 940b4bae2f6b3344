"""A sender and a receiver of regions over sockets, each with a tier."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import xxhash

from dunlin.kv.region_identity import signed_digest
from dunlin.messages.types import Region
from dunlin.transport.payload import RegionHeader
from dunlin.transport.sockets.receiver import RegionReceiver
from dunlin.transport.sockets.sender import RegionSend, RegionSender
from tests.transport.told import Told

SIZE = 3 << 20

ROOM = 8 << 20


class Pair:
    """A sender and a receiver, each with a tier. Neither gives the other up unless a test says so."""

    def __init__(self, **settings: Any) -> None:
        self.source, self.target = bytearray(random.Random(1).randbytes(ROOM)), bytearray(ROOM)
        self.sent, self.received = Told(), Told()
        patience = {"patience_s": 60.0, "stall_s": 60.0, **settings}
        self.receiver = RegionReceiver(memoryview(self.target), self.received, **patience)
        self.sender = RegionSender(memoryview(self.source), self.sent, stall_s=60.0)

    def payload(self, offset: int = 0, length: int = SIZE, **overrides: Any) -> RegionHeader:
        plain = RegionHeader(b"", 3, 1, Region(0, 2, 16, 64), "float32", b"chain", length, 0)
        content = bytes(self.source[offset : offset + length])
        checksum = signed_digest(xxhash.xxh3_64_intdigest(plain.identity + content))
        return replace(plain, **{"checksum": checksum, **overrides})

    def announce(self, payload: RegionHeader, at: int = 0) -> RegionHeader:
        return replace(payload, token=self.receiver.expect(payload, at))

    def parcel(self, payload: RegionHeader, ticket: int = 1, offset: int = 0) -> RegionSend:
        return RegionSend(ticket, f"127.0.0.1:{self.receiver.port}", "", payload, offset)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.receiver.port), timeout=300)


@contextmanager
def pair(**settings: Any) -> Iterator[Pair]:
    made = Pair(**settings)
    try:
        yield made
    finally:
        made.sender.close()
        made.receiver.close()
