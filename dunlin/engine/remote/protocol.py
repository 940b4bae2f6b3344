"""What two transfer helpers say to each other over one connection. Pure.

The sender's `Greeting` shows the token that came with the receiver's agent; one byte answers. Then each `Chunk` says by
itself where it belongs, so that the receiver remembers nothing between two chunks, and may get one twice; an `Answer`
follows each. Numbers are little-endian.
"""

import struct
from dataclasses import dataclass

import xxhash

from dunlin.engine.transfer.extents import KvKind
from dunlin.kv.region_identity import signed_digest
from dunlin.messages.types import Payload, Region

CHUNK_BYTES = 512 << 10
TOKEN_BYTES = 32
PEERS_MOST = 256
"""Engines that an engine can have met at once."""
WELCOME, UNWELCOME = b"\x01", b"\x00"
_MAGIC = b"dunlinT1"
_GREETING = struct.Struct("<8s32s128s")
_CHUNK = struct.Struct("<QBqqiiqqi16sI")
_CHECKSUM = struct.Struct("<q")
_ANSWER = struct.Struct("<QB255p")
GREETING_BYTES = _GREETING.size
CHUNK_HEADER_BYTES = _CHUNK.size + _CHECKSUM.size
ANSWER_BYTES = _ANSWER.size


class ProtocolError(Exception):
    """What came is no message of a transfer helper."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first words of a connection. `name` is the sender's instance."""

    token: bytes
    name: str

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return _GREETING.pack(_MAGIC, self.token, self.name.encode()[:128])


def decode_greeting(data: bytes) -> Greeting:
    """:raises ProtocolError: it is none."""
    magic, token, name = _GREETING.unpack(data)
    if magic != _MAGIC:
        raise ProtocolError("no greeting of a transfer helper")
    return Greeting(token, name.rstrip(b"\0").decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes and where they belong in the receiver's memory, in its `layout`.

    KV: `region` of the open room `handle`, whose slots begin at token 0, of `kind`. Else bytes `[region.start,
    region.stop)` of the transit room `handle`. `number` is counted by the sender, and not part of the checksum.
    """

    number: int
    payload: Payload
    layout: int
    handle: int
    region: Region
    kind: KvKind
    length_bytes: int

    def encode(self) -> bytes:
        """The header's bytes without the checksum."""
        where = self.region
        layers, tokens = (where.layer_start, where.layer_stop), (where.start, where.stop)
        kind = (self.kind.slot_bytes, self.kind.dtype.encode())
        return _CHUNK.pack(
            self.number, self.payload, self.layout, self.handle, *layers, *tokens, *kind, self.length_bytes
        )

    def hasher(self) -> "xxhash.xxh3_64":
        """To be fed with the bytes: its digest is the checksum, of where they belong and what they are."""
        return xxhash.xxh3_64(self.encode()[8:])


def decode_chunk(data: bytes) -> tuple[Chunk, int]:
    """A header and its checksum. :raises ProtocolError: it is none."""
    number, payload, layout, handle, *rest = _CHUNK.unpack_from(data)
    layer_start, layer_stop, start, stop, slot_bytes, dtype, length = rest
    try:
        kind = KvKind(dtype.rstrip(b"\0").decode(), slot_bytes)
        region = Region(layer_start, layer_stop, start, stop)
        chunk = Chunk(number, Payload(payload), layout, handle, region, kind, length)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if not 0 < length <= CHUNK_BYTES:
        raise ProtocolError(f"a chunk of {length} bytes")
    return chunk, _CHECKSUM.unpack_from(data, _CHUNK.size)[0]


def encode_checksum(hasher: "xxhash.xxh3_64") -> bytes:
    """What ends a chunk's header."""
    return _CHECKSUM.pack(signed_digest(hasher.intdigest()))


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a chunk. `is_corrupt`: what lies in the memory is not what was sent; else `detail` says why
    nothing was written, and is empty if it was.
    """

    number: int
    is_corrupt: bool = False
    detail: str = ""

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return _ANSWER.pack(self.number, self.is_corrupt, self.detail.encode()[:254])


def decode_answer(data: bytes) -> Answer:
    """The answer in `ANSWER_BYTES` bytes."""
    number, is_corrupt, detail = _ANSWER.unpack(data)
    return Answer(number, bool(is_corrupt), detail.decode("utf-8", "replace"))
