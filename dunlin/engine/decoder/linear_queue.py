"""The tokens of a batch whose linear work is left in a stretch of a layer. Pure bookkeeping."""

from collections import deque
from collections.abc import Iterable

from dunlin.engine.decoder.linear_work import LinearWork

Span = tuple[int, int]


class LinearQueue:
    """Spans of tokens that are not begun, and work that is; of a row, work that is begun comes before the rest."""

    def __init__(self, spans: Iterable[Span] = (), begun: Iterable[LinearWork] = ()) -> None:
        self.begun = deque(begun)
        self._spans = deque(_merged(spans))

    def __bool__(self) -> bool:
        return bool(self._spans or self.begun)

    def take(self, size: int | None = None) -> Span:
        """The tokens of the next block, about `size` of them: a rest of less than half a block goes with the one before
        it. None: the whole span.
        """
        start, stop = self._spans.popleft()
        if size is not None and stop - start >= size + size // 2:
            self._spans.appendleft((start + size, stop))
            stop = start + size
        return start, stop

    def forget(self, start: int, stop: int) -> None:
        """The tokens `[start, stop)` are no longer to be computed."""
        self._spans = deque(_without(self._spans, start, stop))
        self.begun = deque(rest for work in self.begun for rest in work.without(start, stop))

    def left(self, start: int, stop: int) -> int:
        """How many of the tokens `[start, stop)` are not done."""
        spans = [*self._spans, *((work.start, work.stop) for work in self.begun)]
        return sum(max(min(last, stop) - max(first, start), 0) for first, last in spans)

    def begun_of(self, start: int, stop: int) -> LinearWork | None:
        """A copy of the work that is begun for tokens of `[start, stop)`, counted from `start`."""
        for work in self.begun:
            first, last = max(work.start, start), min(work.stop, stop)
            if first < last:
                return work.part(first, last, start)
        return None


def _merged(spans: Iterable[Span]) -> Iterable[Span]:
    """Ascending spans without the empty ones, neighbours as one."""
    merged: list[Span] = []
    for start, stop in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged


def _without(spans: Iterable[Span], start: int, stop: int) -> Iterable[Span]:
    """The spans without what lies in `[start, stop)`."""
    for first, last in spans:
        for piece in ((first, min(last, start)), (max(first, stop), last)):
            if piece[0] < piece[1]:
                yield piece
