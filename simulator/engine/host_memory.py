"""The memory of a node's host tier: what lies at an offset, shared by engines and surviving them."""

from hashlib import blake2b

from dunlin.identity import identity
from dunlin.messages.types import HostRegion, Region, i64


class SimulatedHostMemory:
    """What lies at an offset: one number for each token, or whatever stands for the bytes. It can be damaged."""

    def __init__(self) -> None:
        self.contents: dict[int, list[int]] = {}

    def write(self, host: HostRegion, content: list[int]) -> None:
        """Store a region."""
        self.contents[host.offset_bytes] = list(content)

    def read(self, host: HostRegion) -> list[int]:
        """What lies there, whoever wrote it."""
        return self.contents.get(host.offset_bytes, [])

    def corrupt(self, offset_bytes: int) -> None:
        """Damage one region."""
        self.contents[offset_bytes][0] ^= 1


def checksum_of(region: Region, kv_dtype: str, chain: bytes, content: list[int]) -> int:
    """The checksum of a region whose bytes are `content`: like the live one it speaks of the region's identity too."""
    said = identity(region, kv_dtype, chain) + i64(content).tobytes()
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "little", signed=True)
