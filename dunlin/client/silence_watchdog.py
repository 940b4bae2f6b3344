"""A watchdog for silent calls: a stuck dispatcher keeps its connections open, and shows only by sending nothing.

Silence is counted in ticks of this process, so that a client that was itself suspended or busy for a minute does not
count that minute. Time in which the caller does not wait for the next event does not count either.
"""

import threading
import time
from collections.abc import Callable

from dunlin.wire.rpc.calls import CallFailed

TICK_S = 0.5
MAX_SILENT_TICKS = 6
"""A dispatcher sends an event every second; after so many ticks (3 s) without one it is taken for stuck."""


class SilenceWatchdog:
    """Measures the silence of one call, and cancels the call once when it has lasted too long (`is_expired`)."""

    def __init__(self) -> None:
        self.is_expired = False
        self._cancel: Callable[[], object] | None = None
        self._ticks = 0
        self._listens = False

    def set_cancel(self, cancel: Callable[[], object]) -> None:
        """The call is open; `cancel` is the function that ends it."""
        self._cancel = cancel

    def start(self) -> None:
        """The caller waits for the next event: count ticks from zero."""
        self._ticks = 0
        self._listens = True

    def stop(self) -> None:
        """The caller does not wait: stop counting."""
        self._listens = False

    def tick(self) -> None:
        """`TICK_S` seconds have passed."""
        if not self._listens or self.is_expired:
            return
        self._ticks += 1
        if self._ticks > MAX_SILENT_TICKS and self._cancel is not None:
            self.is_expired = True
            self._cancel()

    def call_failure(self, endpoint: str) -> CallFailed:
        """The error of a call that was cancelled for its silence."""
        text = f"{endpoint} has been silent for {MAX_SILENT_TICKS * TICK_S:g} s"
        return CallFailed("UNAVAILABLE", text)


class WatchdogTicker:
    """Owns a thread that calls `tick` of every added watchdog; it runs while there are any. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticked: dict[SilenceWatchdog, None] = {}
        self._thread: threading.Thread | None = None

    def add(self, watchdog: SilenceWatchdog) -> None:
        """Call the watchdog's `tick` from now on."""
        with self._lock:
            self._ticked[watchdog] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dunlin-client-ticker", daemon=True)
                self._thread.start()

    def remove(self, watchdog: SilenceWatchdog) -> None:
        """Do not call the watchdog's `tick` any more."""
        with self._lock:
            self._ticked.pop(watchdog, None)

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self._lock:
                ticked = list(self._ticked)
                if not ticked:
                    self._thread = None
                    return
            for watchdog in ticked:
                watchdog.tick()
