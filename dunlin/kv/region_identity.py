"""What a region's bytes are: the part of a checksum that keeps one region's bytes from passing for another's.

A hash of the bytes alone is content with two whole regions that changed places, checksums and all. So the writer hashes
what the bytes are before the bytes, and the reader hashes what it wants: layers and span, the element type, and the
chain of the tokens up to the end, which stands for tenant, weights, rope frequencies and every token. Where the bytes
lie is not part of it: a handle or a generation that leads elsewhere leads to bytes of another identity, or to the same
keys and values. Knows no byte of a region.
"""

import struct

from dunlin.messages.types import Region

_HEAD = struct.Struct("<4sqqqqII")
_MAGIC = b"dkv1"


def region_identity(region: Region, kv_dtype: str, chain: bytes) -> bytes:
    """The bytes that go into the hash before the region's own; two regions that differ in anything differ here."""
    name = kv_dtype.encode()
    span = (region.layer_start, region.layer_stop, region.start, region.stop)
    return _HEAD.pack(_MAGIC, *span, len(name), len(chain)) + name + chain


def signed_digest(digest: int) -> int:
    """A 64-bit digest as the signed integer that messages carry."""
    return digest - (1 << 64) if digest >= 1 << 63 else digest
