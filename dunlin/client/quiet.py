"""Is the other side still there? A stuck dispatcher keeps its connections: only its silence tells.

Silence is counted in ticks of this process's own clock work, so that a client that was itself stopped, or busy, for a
minute has not listened for a minute. Time in which the caller does not ask for more is not listened either.
"""

import threading
import time
from collections.abc import Callable

from dunlin.wire.calls import CallFailed

TICK_S = 0.5
MOST_TICKS = 6
"""Dispatchers say something every second; after three they are taken for stuck."""


class Quiet:
    """One call's silence. What `watch` is given is called once, when it has lasted too long."""

    def __init__(self) -> None:
        self.is_over = False
        self._cancel: Callable[[], object] | None = None
        self._ticks = 0
        self._listens = False

    def watch(self, cancel: Callable[[], object]) -> None:
        """The call is open; this ends it."""
        self._cancel = cancel

    def listen(self) -> None:
        """The caller waits for the next answer."""
        self._ticks = 0
        self._listens = True

    def heard(self) -> None:
        """It came."""
        self._listens = False

    def tick(self) -> None:
        """A while has passed."""
        if not self._listens or self.is_over:
            return
        self._ticks += 1
        if self._ticks > MOST_TICKS and self._cancel is not None:
            self.is_over = True
            self._cancel()

    def failure(self, endpoint: str) -> CallFailed:
        """What to make of the cancelled call."""
        text = f"{endpoint} has been silent for {MOST_TICKS * TICK_S:g} s"
        return CallFailed("UNAVAILABLE", text)


class Ticker:
    """A thread that ticks while there is somebody to tick for. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticked: dict[Quiet, None] = {}
        self._thread: threading.Thread | None = None

    def add(self, quiet: Quiet) -> None:
        """Tick for this one."""
        with self._lock:
            self._ticked[quiet] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dunlin-client-ticker", daemon=True)
                self._thread.start()

    def remove(self, quiet: Quiet) -> None:
        """And no more."""
        with self._lock:
            self._ticked.pop(quiet, None)

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self._lock:
                ticked = list(self._ticked)
                if not ticked:
                    self._thread = None
                    return
            for quiet in ticked:
                quiet.tick()
