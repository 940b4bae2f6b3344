"""The collective of ranks on one machine's CPU: each writes its part into shared memory and reads the others'."""

import mmap
import os

import torch
from torch import Tensor

from dunlin.engine.ranks.shared_words import SharedWords

WORDS_BYTES = 4096
"""Set aside for the words at the start of the memory."""
ROOM_BYTES = 1 << 20
"""A larger part goes in several pieces."""
ROOMS = 2
"""A rank that writes piece n has all parts of piece n-1, so every rank has read piece n-2, which lay in this room."""


def staging_offset(ranks: int) -> int:
    """Where the memory file goes on behind what sums take."""
    return WORDS_BYTES + ranks * ROOMS * ROOM_BYTES


class SharedMemoryCollective:
    """See `Collective`. `fd` is the memory file of the `words`, new when the first rank opens it; the first `ranks` of
    them count the pieces that each has written.
    """

    def __init__(self, fd: int, words: SharedWords, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self._words = words
        self._others = [each for each in range(ranks) if each != rank]
        self._pieces = 0
        size = ranks * ROOMS * ROOM_BYTES
        if os.fstat(fd).st_size < WORDS_BYTES + size:
            os.ftruncate(fd, WORDS_BYTES + size)
        memory = torch.frombuffer(mmap.mmap(fd, size, offset=WORDS_BYTES), dtype=torch.uint8)
        self._rooms = memory.view(ROOMS, ranks, ROOM_BYTES)

    def all_reduce(self, part: Tensor) -> Tensor:
        given, out = part.reshape(-1), part.new_empty(part.shape)
        into, most = out.view(-1), ROOM_BYTES // part.element_size()
        for at in range(0, len(given), most):
            _sum(self._exchange(given[at : at + most]), into[at : at + most])
        return out

    def all_gather(self, part: Tensor) -> Tensor:
        given, out = part.reshape(-1), part.new_empty(self.ranks, *part.shape)
        into, most = out.view(self.ranks, -1), ROOM_BYTES // part.element_size()
        for at in range(0, len(given), most):
            into[:, at : at + most] = self._exchange(given[at : at + most])
        return out

    def _exchange(self, part: Tensor) -> Tensor:
        """The same piece of all ranks, `[ranks, items]`: to be read before the next but one is written."""
        self._pieces += 1
        for other in self._others:
            self._words.wait(other, self._pieces - 1)
        rooms = self._rooms[self._pieces % ROOMS].view(part.dtype)[:, : len(part)]
        rooms[self.rank] = part
        self._words.set(self.rank, self._pieces)
        for other in self._others:
            self._words.wait(other, self._pieces)
        return rooms


def _sum(parts: Tensor, into: Tensor) -> None:
    """In fp32, one rank after another."""
    is_exact = into.dtype is torch.float32
    total = torch.add(parts[0].float(), parts[1].float(), out=into if is_exact else None)
    for part in parts[2:]:
        total += part.float()
    if not is_exact:
        into.copy_(total)
