"""Log lines about peers that do wrong: at most one in a second, however many there are."""

import logging
from collections.abc import Callable

INTERVAL_S = 1.0
MAX_CHARACTERS = 200

_log = logging.getLogger(__name__)


class PeerLog:
    """Owns the time of the last line, and how many were left out since."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said_s = float("-inf")
        self._unsaid = 0

    def warn(self, peer: str, text: str) -> None:
        """One line about one peer, or none: the next one then counts it."""
        now_s = self._clock()
        if now_s - self._said_s < INTERVAL_S:
            self._unsaid += 1
            return
        others = f" (and {self._unsaid} more since the last such line)" if self._unsaid else ""
        self._said_s, self._unsaid = now_s, 0
        # What the peer sent may be in the text: on one line, and not for long.
        spelled = " ".join(text.split())[:MAX_CHARACTERS]
        _log.warning("HTTP: %s: %s%s", peer or "a peer", spelled, others)
