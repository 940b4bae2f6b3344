"""Stop strings: text is held back while it could still become one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matched:
    """Text that may go out, and whether a stop string ended it. The stop string itself never goes out."""

    text: str
    stopped: bool


class StopMatcher:
    """Watches one text for any of `stops`. Holds back at most one character less than the longest of them."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> Matched:
        """Take the next piece of text. After a stop nothing more may be pushed."""
        if not self._stops:
            return Matched(text, stopped=False)
        seen = self._held + text
        # The one that ends first wins, so the result does not depend on how the text was cut.
        found = [(at + len(stop), at) for at, stop in ((seen.find(stop), stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return Matched(seen[: min(found)[1]], stopped=True)
        keep = self._partial(seen)
        self._held = seen[len(seen) - keep :]
        return Matched(seen[: len(seen) - keep], stopped=False)

    def finish(self) -> str:
        """The text still held back: it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _partial(self, seen: str) -> int:
        """Length of the longest end of `seen` that begins a stop string."""
        for length in range(min(self._longest - 1, len(seen)), 0, -1):
            end = seen[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
