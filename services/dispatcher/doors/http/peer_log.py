"""Log lines about faults of peers: at most one per second, however many faults there are."""

import logging
from collections.abc import Callable

INTERVAL_S = 1.0
MAX_CHARACTERS = 200

_log = logging.getLogger(__name__)


class PeerLog:
    """Owns the time of the last line, and the number of faults left out since."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_line_s = float("-inf")
        self._left_out = 0

    def warn(self, peer: str, text: str) -> None:
        """Log one line about a peer, or leave it out: the next line then counts it."""
        now_s = self._clock()
        if now_s - self._last_line_s < INTERVAL_S:
            self._left_out += 1
            return
        others = f" (and {self._left_out} more since the last such line)" if self._left_out else ""
        self._last_line_s, self._left_out = now_s, 0
        # The text may hold the peer's bytes: keep it on one line, and short.
        shown = " ".join(text.split())[:MAX_CHARACTERS]
        _log.warning("HTTP: %s: %s%s", peer or "a peer", shown, others)
