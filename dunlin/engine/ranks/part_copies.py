"""Which slots the ranks of an engine copy together, each its part of them. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class SlotRun:
    """`count` slots of a layer from `start` on, of `slot_bytes` each over all ranks. For `ByteCursor` it is as long as
    they are, in bytes, and is cut between slots alone.
    """

    layer: int
    start: int
    count: int
    slot_bytes: int

    def __len__(self) -> int:
        return self.count * self.slot_bytes

    def __getitem__(self, part: slice) -> "SlotRun":
        first, stop, _ = part.indices(len(self))
        assert first % self.slot_bytes == stop % self.slot_bytes == 0, "a slot is copied whole"
        count = max(stop - first, 0) // self.slot_bytes
        return SlotRun(self.layer, self.start + first // self.slot_bytes, count, self.slot_bytes)


@dataclass(frozen=True, slots=True)
class PartCopy:
    """Each rank copies its part of these slots, in their order: from the memory that all ranks share to its KV if
    `to_kv`, else from its KV there.
    """

    runs: tuple[SlotRun, ...]
    to_kv: bool

    def encode(self) -> bytes:
        """To be read by `decode`."""
        numbers = [[run.layer, run.start, run.count, run.slot_bytes] for run in self.runs]
        return bytes([self.to_kv]) + np.array(numbers, dtype=np.int64).tobytes()

    @staticmethod
    def decode(data: bytes) -> "PartCopy":
        """What `encode` wrote."""
        numbers: Sequence[Any] = np.frombuffer(data[1:], dtype=np.int64).reshape(-1, 4).tolist()
        return PartCopy(tuple(SlotRun(*each) for each in numbers), bool(data[0]))
