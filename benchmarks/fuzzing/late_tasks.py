"""Let tasks of asyncio wake late: a plugin of pytest that finds tests, and code, which hold only by luck of the order.

    python -m pytest -n 3 --dist loadfile -p benchmarks.fuzzing.late_tasks -m "not cluster" tests/wire tests/services
    python -m pytest -p benchmarks.fuzzing.late_tasks --late-seed 7 --late-share 0.3 --late-most-s 0.2 tests/wire

A share of all wake-ups, drawn by the seed, comes late by a time up to the most. It is what a loaded machine does to a
process now and then; tasks that were woken in one order run in another one. A test that counts turns of the loop may
fail with nothing wrong. Processes that a test starts are not touched.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Run = Callable[[asyncio.Handle], None]
WAKE_UP = "task_wakeup"
"""What the C code of asyncio names the call that resumes a task whose future is done."""


class LateTasks:
    """Decides for each handle of a loop whether it runs now or late; `late` counts the latter."""

    def __init__(self, seed: int, share: float, most_s: float, run: Run) -> None:
        self.late = 0
        self._draw = random.Random(seed)
        self._share, self._most_s = share, most_s
        self._run = run

    def run(self, handle: asyncio.Handle) -> None:
        """In the place of `asyncio.Handle._run`."""
        name = getattr(handle._callback, "__name__", "")  # type: ignore[attr-defined]
        if name != WAKE_UP or self._draw.random() >= self._share:
            self._run(handle)
            return
        self.late += 1
        loop: asyncio.AbstractEventLoop = handle._loop  # type: ignore[attr-defined]
        loop.call_later(self._draw.uniform(0.0, self._most_s), self._run_unless_cancelled, handle)

    def _run_unless_cancelled(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self._run(handle)


@contextmanager
def late_tasks(seed: int, share: float, most_s: float) -> Iterator[LateTasks]:
    """While this is open, in all loops of asyncio in this process (uvloop's have handles of their own)."""
    usual: Run = asyncio.Handle._run
    tasks = LateTasks(seed, share, most_s, usual)
    asyncio.Handle._run = lambda handle: tasks.run(handle)  # type: ignore[method-assign, assignment]
    try:
        yield tasks
    finally:
        asyncio.Handle._run = usual  # type: ignore[method-assign, assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("late tasks")
    group.addoption("--late-seed", type=int, default=1, help="of what is drawn")
    group.addoption("--late-share", type=float, default=0.08, help="share of the wake-ups, 0 to 1")
    group.addoption("--late-most-s", type=float, default=0.1, help="how late at most; seconds")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Each test begins with the seed: one that failed fails again alone, as far as threads and processes let it."""
    option = item.config.getoption
    with late_tasks(option("--late-seed"), option("--late-share"), option("--late-most-s")):
        yield
