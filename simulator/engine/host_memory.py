"""The memory of a node's host tier: shared by its engines, and it outlives them."""

from hashlib import blake2b

from dunlin.kv.region_identity import region_identity
from dunlin.messages.types import HostRegion, Region, i64


class SimulatedHostMemory:
    """Contents by byte offset: one number per token stands for the bytes of its KV.

    `damaged`: offsets whose content is not what was written there, or a copy of such content.
    """

    def __init__(self) -> None:
        self.contents: dict[int, list[int]] = {}
        self.damaged: set[int] = set()

    def write(self, host: HostRegion, content: list[int]) -> None:
        """Store a region."""
        self.contents[host.offset_bytes] = list(content)
        self.damaged.discard(host.offset_bytes)

    def read(self, host: HostRegion) -> list[int]:
        """The content at the region's offset, of any writer; empty if there is none."""
        return self.contents.get(host.offset_bytes, [])

    def corrupt(self, offset_bytes: int) -> None:
        """Flip a bit of the region at an offset."""
        self.contents[offset_bytes][0] ^= 1
        self.damaged.add(offset_bytes)

    def copy_from(self, other: "SimulatedHostMemory", there: HostRegion, host: HostRegion) -> None:
        """Store the region `there` of another memory as `host`, damaged if it is."""
        self.write(host, other.read(there))
        if there.offset_bytes in other.damaged:
            self.damaged.add(host.offset_bytes)


def checksum_of(region: Region, kv_dtype: str, chain: bytes, content: list[int]) -> int:
    """The 64-bit checksum of a region's identity and of `content`, as the live one covers both."""
    said = region_identity(region, kv_dtype, chain) + i64(content).tobytes()
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "little", signed=True)
