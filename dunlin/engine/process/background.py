"""Threads beside the one that serves: work of low priority, and signs of life while that one can give none. Loads no
torch.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

NICENESS = 10
"""Gives a tenth of a contended core. The idle class would get nothing beside an engine that is never idle, and a
standby engine would never be prepared.
"""


COUNT_S = 1.0
"""Between two signs of life."""
COUNTER = "signs-of-life"
"""The thread that gives them."""


@contextmanager
def counted(count: Callable[[], None], most_s: float, every_s: float = COUNT_S) -> Iterator[None]:
    """A thread calls `count` now and then while the block runs, which may take `most_s` seconds without being stuck."""
    ended = threading.Event()

    def work() -> None:
        for _ in range(round(most_s / every_s)):
            if ended.wait(every_s):
                return
            count()

    thread = threading.Thread(target=work, name=COUNTER, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_at_low_priority(work: Callable[[], T]) -> T:
    """Run `work` in a thread of low priority and wait for its result.

    Only that thread's priority is lowered: raising one's own again takes a privilege, and this thread is to serve.
    """
    with ThreadPoolExecutor(1, initializer=_step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
