"""The short notices that two agents exchange about one region, and their bytes. Pure.

Every notice carries the region's token, which travels over the streams of the services alone: a notice without it is
ignored.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar

from dunlin.transport.payload import LENGTH, TOKEN_BYTES, Payload, PayloadError, decode

_SHORT = struct.Struct(f"<c{TOKEN_BYTES}sq")


@dataclass(frozen=True, slots=True)
class Begin:
    """Sender: this region is ready to be written; give me a lane."""

    KIND: ClassVar[bytes] = b"b"

    payload: Payload

    @property
    def token(self) -> bytes:
        """The token of the region."""
        return self.payload.token


@dataclass(frozen=True, slots=True)
class Granted:
    """Receiver: write into this lane, no further than its depth ahead of what was taken."""

    KIND: ClassVar[bytes] = b"g"

    token: bytes
    lane: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sender: the chunk `index` lies in the lane."""

    KIND: ClassVar[bytes] = b"c"

    token: bytes
    index: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Receiver: the first `count` chunks are out of the lane."""

    KIND: ClassVar[bytes] = b"t"

    token: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Over:
    """Receiver: the region is whole and matches its checksum (`whole` is 1), or is not taken (0)."""

    KIND: ClassVar[bytes] = b"o"

    token: bytes
    whole: int


@dataclass(frozen=True, slots=True)
class Left:
    """Sender: nothing writes into the lane any more, and the region will not be whole."""

    KIND: ClassVar[bytes] = b"l"

    token: bytes
    reason: int = 0


Notice = Begin | Granted | Chunk | Taken | Over | Left

_SHORT_ONES: dict[bytes, type[Granted | Chunk | Taken | Over | Left]] = {
    kind.KIND: kind for kind in (Granted, Chunk, Taken, Over, Left)
}


def to_bytes(notice: Notice) -> bytes:
    """The bytes of a notice. Raises PayloadError for a header that cannot be encoded."""
    match notice:
        case Begin():
            return Begin.KIND + notice.payload.encode()[LENGTH.size :]
        case Granted():
            number = notice.lane
        case Chunk():
            number = notice.index
        case Taken():
            number = notice.count
        case Over():
            number = notice.whole
        case Left():
            number = notice.reason
    return _SHORT.pack(notice.KIND, notice.token, number)


def from_bytes(data: bytes) -> Notice:
    """The notice in `data`.

    Raises:
        PayloadError: it holds none.
    """
    if data[:1] == Begin.KIND:
        return Begin(decode(data[1:]))
    kind = _SHORT_ONES.get(data[:1])
    if kind is None or len(data) != _SHORT.size:
        raise PayloadError(f"{len(data)} bytes that are no notice")
    _, token, number = _SHORT.unpack(data)
    return kind(token, number)
