"""Runs work beside a process that serves, on what that leaves of the cores. Loads no torch."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICENESS = 10
"""A tenth of a contended core. The idle class would get nothing beside an engine that is never idle, and what stands
by would never be prepared.
"""


def in_background(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread of low priority while this one waits.

    Only that thread's priority is lowered: raising one's own again takes a privilege, and this thread is to serve.
    """
    with ThreadPoolExecutor(1, initializer=_step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
