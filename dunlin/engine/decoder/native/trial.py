"""How long two ways of computing the same take on this processor, told when an engine starts."""

import time
from collections.abc import Callable


def least_s(compute: Callable[[], object], turns: int) -> float:
    """CPU seconds of this thread, the least of so many turns: what neighbours take does not count."""
    took = []
    for _ in range(turns):
        began_s = time.thread_time()
        compute()
        took.append(time.thread_time() - began_s)
    return min(took)
