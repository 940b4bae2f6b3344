"""Stop strings: text is held back while it could still be the beginning of one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Text that may be sent, and whether a stop string ended it. The stop string itself is never part of it."""

    text: str
    stopped: bool


class StopMatcher:
    """Searches one text for any of `stops`; holds back at most one character less than the longest of them.

    The cost of a character depends neither on the length of the stop strings nor on repetitions in the text: clients
    choose both.

    Raises:
        ValueError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._stops = [_Stop(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> StopMatch:
        """Append the next piece of text. After a stop nothing more may be pushed."""
        if not self._stops:
            return StopMatch(text, stopped=False)
        seen = self._held + text
        # The match that ends first wins, so that the result does not depend on how the text was cut into pieces; of
        # several that end together the longest.
        found = [(end, end - len(stop.text)) for stop in self._stops if (end := stop.push(text)) is not None]
        if found:
            start = len(self._held) + min(found)[1]
            self._held = ""
            return StopMatch(seen[:start], stopped=True)
        keep = max(stop.matched for stop in self._stops)
        self._held = seen[len(seen) - keep :]
        return StopMatch(seen[: len(seen) - keep], stopped=False)

    def finish(self) -> str:
        """The text that is still held back: it did not become a stop string."""
        held, self._held = self._held, ""
        return held


class _Stop:
    """A Knuth-Morris-Pratt search for one stop string, whose first `matched` characters end the text so far.

    The failure table is extended only as far as the text matches: a stop string that never comes costs nothing.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._failure: list[int] = []

    def push(self, text: str) -> int | None:
        """The position in `text` behind the first occurrence; None: it does not end in `text`."""
        matched, first = self.matched, self.text[0]
        for at, character in enumerate(text):
            if matched or character == first:
                matched = self._extend(matched, character)
                if matched == len(self.text):
                    return at + 1
                if matched > len(self._failure):
                    # The length of the longest proper prefix that is also a suffix of what is matched.
                    self._failure.append(self._extend(self._failure[-1], character) if self._failure else 0)
        self.matched = matched
        return None

    def _extend(self, matched: int, character: str) -> int:
        """The number of matched characters after one more character of the text."""
        while matched and self.text[matched] != character:
            matched = self._failure[matched - 1]
        return matched + 1 if self.text[matched] == character else 0
