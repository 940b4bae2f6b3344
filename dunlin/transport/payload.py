"""What travels before a region's bytes: their identity and their receiver, which compares before it reads.

One frame: the header's length (two bytes, little-endian), the header, the region's bytes. The answer is one byte. Knows
no socket.
"""

import struct
from dataclasses import dataclass

from dunlin.kv.region_identity import region_identity
from dunlin.messages.types import Region

MAGIC = b"dkp1"
TOKEN_BYTES = 16
HEADER_MOST_BYTES = 256
LENGTH = struct.Struct("<H")
TAKEN, REFUSED = b"\x01", b"\x00"

_FIXED = struct.Struct("<4s16sqqqqqqqqBB")
_NAME_MOST_BYTES = 64


class PayloadError(ValueError):
    """Bytes that are not a header; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class RegionHeader:
    """One region on its way. `token` proves that the receiver asked for it; `handle` and `generation` are its room
    there; `checksum` is of `region_identity` and the bytes.
    """

    token: bytes
    handle: int
    generation: int
    region: Region
    kv_dtype: str
    chain: bytes
    length_bytes: int
    checksum: int

    @property
    def identity(self) -> bytes:
        """The identity of the region, which is hashed before its bytes."""
        return region_identity(self.region, self.kv_dtype, self.chain)

    def encode(self) -> bytes:
        """The header, with its length before it.

        Raises:
            PayloadError: the token, type or chain has a length that no header has.
        """
        name = self.kv_dtype.encode()
        if len(self.token) != TOKEN_BYTES or max(len(name), len(self.chain)) > _NAME_MOST_BYTES:
            raise PayloadError("a token of another length than 16 bytes, or a type or chain of more than 64")
        region = self.region
        span = (region.layer_start, region.layer_stop, region.start, region.stop)
        numbers = (self.handle, self.generation, *span, self.length_bytes, self.checksum)
        header = _FIXED.pack(MAGIC, self.token, *numbers, len(name), len(self.chain)) + name + self.chain
        return LENGTH.pack(len(header)) + header


def decode_header(header: bytes) -> RegionHeader:
    """A header without its length.

    Raises:
        PayloadError: it is none.
    """
    if not _FIXED.size <= len(header) <= HEADER_MOST_BYTES:
        raise PayloadError(f"a header of {len(header)} bytes")
    magic, token, *numbers, name_bytes, chain_bytes = _FIXED.unpack_from(header)
    rest = header[_FIXED.size :]
    if magic != MAGIC or name_bytes + chain_bytes != len(rest):
        raise PayloadError("not a header of this version")
    handle, generation, layer_start, layer_stop, start, stop, length_bytes, checksum = numbers
    try:
        name = rest[:name_bytes].decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"the type's name is no text: {error}") from None
    region = Region(layer_start, layer_stop, start, stop)
    return RegionHeader(token, handle, generation, region, name, rest[name_bytes:], length_bytes, checksum)
