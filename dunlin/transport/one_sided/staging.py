"""How big the staging memory is and how it is cut: lanes of a few chunks, one lane per region under way. Pure."""

from dataclasses import dataclass

from dunlin.messages.exchange import TransferAgent

LANES = 8
DEPTH = 4
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StagingLayout:
    """`lanes` regions may come and as many go at the same time, each through `depth` chunks of `chunk_bytes`."""

    lanes: int = LANES
    depth: int = DEPTH
    chunk_bytes: int = CHUNK_BYTES

    @property
    def lane_bytes(self) -> int:
        """Bytes of one lane."""
        return self.depth * self.chunk_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all lanes, both directions."""
        return 2 * self.lanes * self.lane_bytes

    def chunks(self, length_bytes: int) -> int:
        """The number of chunks of a region."""
        return -(-length_bytes // self.chunk_bytes)

    def length(self, index: int, length_bytes: int) -> int:
        """Bytes of the chunk `index` of a region."""
        return min(self.chunk_bytes, length_bytes - index * self.chunk_bytes)

    def incoming(self, lane: int, index: int) -> int:
        """Offset of the chunk `index` in an incoming lane."""
        return lane * self.lane_bytes + index % self.depth * self.chunk_bytes

    def outgoing(self, lane: int, index: int) -> int:
        """Offset of the chunk `index` in an outgoing lane."""
        return self.incoming(self.lanes + lane, index)


def staging_layout(about: TransferAgent) -> StagingLayout:
    """How a peer cut its memory.

    Raises:
        ValueError: the peer's figures are out of range.
    """
    if not (0 < about.lanes <= 1024 and 0 < about.depth <= 1024 and 0 < about.chunk_bytes <= 1 << 30):
        raise ValueError(f"{about.name} has {about.lanes} lanes of {about.depth} chunks of {about.chunk_bytes} bytes")
    return StagingLayout(about.lanes, about.depth, about.chunk_bytes)


class LanePool:
    """Owns the free lanes of one direction; the lowest is taken first."""

    def __init__(self, count: int) -> None:
        self._free = list(reversed(range(count)))

    def __len__(self) -> int:
        return len(self._free)

    def allocate(self) -> int | None:
        """Take a lane; None if none is free."""
        return self._free.pop() if self._free else None

    def release(self, lane: int) -> None:
        """Return a lane that `take` gave."""
        self._free.append(lane)
        self._free.sort(reverse=True)
