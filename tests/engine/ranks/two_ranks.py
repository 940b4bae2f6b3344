"""Ranks of one engine as threads of this process, which share memory as processes do."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dunlin.engine.ranks.shared_memory import SharedMemoryCollective
from dunlin.engine.ranks.shared_words import SharedWords

T = TypeVar("T")


def make_collectives(ranks: int = 2, is_alive: Callable[[], bool] = lambda: True) -> list[SharedMemoryCollective]:
    """One for each rank, over the same new memory."""
    words_fd, rooms_fd = os.memfd_create("words"), os.memfd_create("rooms")
    return [
        SharedMemoryCollective(rooms_fd, SharedWords(words_fd, ranks, is_alive), rank, ranks) for rank in range(ranks)
    ]


def together(*works: Callable[[], T]) -> list[T]:
    """Run the ranks' work at the same time; their results in order."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result() for each in [pool.submit(work) for work in works]]
