"""Host memory of all ranks of an engine, through which KV of devices passes, and how often each has copied there."""

import mmap
import os

import torch

from dunlin.engine.ranks.pace import copies_word
from dunlin.engine.ranks.shared_memory import staging_offset
from dunlin.engine.ranks.shared_words import SharedWords
from dunlin.engine.transfer.host_tier import Bytes

STAGING_BYTES = 8 << 20
"""As much as a device's own staging memory: a rank's part of a chunk is no larger than a chunk."""


class SharedStaging:
    """`fd` and `words` as of `SharedMemoryCollective`. `buffer` `[bytes]` uint8 has whole slots, one after another."""

    def __init__(self, fd: int, words: SharedWords, rank: int, ranks: int, size_bytes: int = STAGING_BYTES) -> None:
        offset = staging_offset(ranks)
        if os.fstat(fd).st_size < offset + size_bytes:
            os.ftruncate(fd, offset + size_bytes)
        self.buffer = torch.frombuffer(mmap.mmap(fd, size_bytes, offset=offset), dtype=torch.uint8)
        self._words = words
        self._rank = rank
        self._ranks = ranks
        self._copies = 0

    def part(self, slots: int, slot_bytes: int) -> Bytes:
        """This rank's part of so many slots, `[slots, keys and values, bytes]`."""
        whole: Bytes = self.buffer.numpy()[: slots * slot_bytes].reshape(slots, 2, self._ranks, -1)
        return whole[:, :, self._rank]

    def say_copied(self) -> None:
        """This rank has copied its part once more."""
        self._copies += 1
        self._words.set(copies_word(self._rank, self._ranks), self._copies)

    def wait_for_copies(self) -> None:
        """Until all ranks have copied as often as this one. :raises RankGone: another has ended."""
        for rank in range(self._ranks):
            self._words.wait(copies_word(rank, self._ranks), self._copies)
