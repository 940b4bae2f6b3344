"""How long two ways of computing the same take on this processor, told when an engine starts."""

import time
from collections.abc import Callable


def least_s(ways: tuple[Callable[[], object], Callable[[], object]], turns: int) -> tuple[float, float]:
    """CPU seconds of this thread that each way takes, the least of so many turns: what neighbours take does not count.

    The ways take turns, after one of each that does not count: what runs first pays for caches, threads and parts of
    the processor that were at rest.
    """
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns + 1):
        for way, seconds in zip(ways, took, strict=True):
            began_s = time.thread_time()
            way()
            seconds.append(time.thread_time() - began_s)
    first, second = took
    return min(first[1:]), min(second[1:])
