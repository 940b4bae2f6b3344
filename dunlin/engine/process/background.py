"""Runs work at low priority beside a serving process. Loads no torch."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICENESS = 10
"""Gives a tenth of a contended core. The idle class would get nothing beside an engine that is never idle, and a
standby engine would never be prepared.
"""


def run_at_low_priority(work: Callable[[], T]) -> T:
    """Run `work` in a thread of low priority and wait for its result.

    Only that thread's priority is lowered: raising one's own again takes a privilege, and this thread is to serve.
    """
    with ThreadPoolExecutor(1, initializer=_step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
