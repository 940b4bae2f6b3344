"""The short notices that two agents exchange about one region, and their bytes. Pure.

Every notice carries the region's token, which travels over the streams of the services alone: a notice without it is
ignored.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar

from dunlin.transport.payload import LENGTH, TOKEN_BYTES, PayloadError, RegionHeader, decode_header

_SHORT = struct.Struct(f"<c{TOKEN_BYTES}sq")


@dataclass(frozen=True, slots=True)
class WriteRequested:
    """Sender: this region is ready to be written; give me a lane."""

    KIND: ClassVar[bytes] = b"b"

    payload: RegionHeader

    @property
    def token(self) -> bytes:
        """The token of the region."""
        return self.payload.token


@dataclass(frozen=True, slots=True)
class LaneGranted:
    """Receiver: write into this lane, no further than its depth ahead of what was taken."""

    KIND: ClassVar[bytes] = b"g"

    token: bytes
    lane: int


@dataclass(frozen=True, slots=True)
class ChunkWritten:
    """Sender: the chunk `index` lies in the lane."""

    KIND: ClassVar[bytes] = b"c"

    token: bytes
    index: int


@dataclass(frozen=True, slots=True)
class ChunksDrained:
    """Receiver: the first `count` chunks are out of the lane."""

    KIND: ClassVar[bytes] = b"t"

    token: bytes
    count: int


@dataclass(frozen=True, slots=True)
class RegionFinished:
    """Receiver: the region is whole and matches its checksum (`whole` is 1), or is not taken (0)."""

    KIND: ClassVar[bytes] = b"o"

    token: bytes
    whole: int


@dataclass(frozen=True, slots=True)
class WriteAbandoned:
    """Sender: nothing writes into the lane any more, and the region will not be whole."""

    KIND: ClassVar[bytes] = b"l"

    token: bytes
    reason: int = 0


Notice = WriteRequested | LaneGranted | ChunkWritten | ChunksDrained | RegionFinished | WriteAbandoned

_SHORT_ONES: dict[bytes, type[LaneGranted | ChunkWritten | ChunksDrained | RegionFinished | WriteAbandoned]] = {
    kind.KIND: kind for kind in (LaneGranted, ChunkWritten, ChunksDrained, RegionFinished, WriteAbandoned)
}


def encode_notice(notice: Notice) -> bytes:
    """The bytes of a notice. Raises PayloadError for a header that cannot be encoded."""
    match notice:
        case WriteRequested():
            return WriteRequested.KIND + notice.payload.encode()[LENGTH.size :]
        case LaneGranted():
            number = notice.lane
        case ChunkWritten():
            number = notice.index
        case ChunksDrained():
            number = notice.count
        case RegionFinished():
            number = notice.whole
        case WriteAbandoned():
            number = notice.reason
    return _SHORT.pack(notice.KIND, notice.token, number)


def decode_notice(data: bytes) -> Notice:
    """The notice in `data`.

    Raises:
        PayloadError: it holds none.
    """
    if data[:1] == WriteRequested.KIND:
        return WriteRequested(decode_header(data[1:]))
    kind = _SHORT_ONES.get(data[:1])
    if kind is None or len(data) != _SHORT.size:
        raise PayloadError(f"{len(data)} bytes that are no notice")
    _, token, number = _SHORT.unpack(data)
    return kind(token, number)
