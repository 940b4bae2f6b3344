"""One line that shows how far a run is. On a terminal it is redrawn; into a file it is written now and then."""

from typing import TextIO

_BAR = 24
_PLAIN_EVERY_S = 15.0


def bar(share: float, width: int = _BAR) -> str:
    """A bar of `width` characters, filled to `share` of 1."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


class ProgressLine:
    """Owns the last line of a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._next_s = 0.0
        self._width = 0

    def show(self, now_s: float, text: str) -> None:
        """Replace the line by `text`."""
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif now_s >= self._next_s:
            self._next_s = now_s + _PLAIN_EVERY_S
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the line; what is printed next starts on a new one."""
        if self._live and self._width:
            self._stream.write("\n")
            self._stream.flush()
