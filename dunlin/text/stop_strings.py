"""Stop strings: text is held back while it could still become one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Text that may go out, and whether a stop string ended it. The stop string itself never goes out."""

    text: str
    stopped: bool


class StopMatcher:
    """Watches one text for any of `stops`. Holds back at most one character less than the longest of them.

    A character costs the same however long the stop strings are, and whatever the text repeats: clients choose both.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._stops = [_Stop(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> StopMatch:
        """Take the next piece of text. After a stop nothing more may be pushed."""
        if not self._stops:
            return StopMatch(text, stopped=False)
        seen = self._held + text
        # The one that ends first wins, so the result does not depend on how the text was cut; of several the longest.
        found = [(end, end - len(stop.text)) for stop in self._stops if (end := stop.push(text)) is not None]
        if found:
            start = len(self._held) + min(found)[1]
            self._held = ""
            return StopMatch(seen[:start], stopped=True)
        keep = max(stop.begun for stop in self._stops)
        self._held = seen[len(seen) - keep :]
        return StopMatch(seen[: len(seen) - keep], stopped=False)

    def finish(self) -> str:
        """The text still held back: it did not become a stop string."""
        held, self._held = self._held, ""
        return held


class _Stop:
    """One stop string, looked for as Knuth, Morris and Pratt do. `begun` of its characters end the text so far.

    The failure table is built only as far as the text matches.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.begun = 0
        self._shorter: list[int] = []

    def push(self, text: str) -> int | None:
        """The index in `text` behind the first occurrence; None if there is none."""
        begun, first = self.begun, self.text[0]
        for at, character in enumerate(text):
            if begun or character == first:
                begun = self._longer(begun, character)
                if begun == len(self.text):
                    return at + 1
                if begun > len(self._shorter):
                    # The longest beginning that also ends what is begun now.
                    self._shorter.append(self._longer(self._shorter[-1], character) if self._shorter else 0)
        self.begun = begun
        return None

    def _longer(self, begun: int, character: str) -> int:
        """The number of matched characters after one more."""
        while begun and self.text[begun] != character:
            begun = self._shorter[begun - 1]
        return begun + 1 if self.text[begun] == character else 0
