"""The highest value of a number lately: a fleet that lost an instance for a while is judged by what it was before."""

from collections import deque
from math import inf
from typing import Generic, TypeVar

Number = TypeVar("Number", int, float)


class RecentPeak(Generic[Number]):
    """Owns the highest values of the last `remembered_s` seconds, each with the time until which it held."""

    def __init__(self, remembered_s: float, nothing: Number) -> None:
        self._remembered_s = remembered_s
        self._nothing: Number = nothing
        self._first_s: float | None = None
        self._values: deque[tuple[float, Number]] = deque()
        """Falling values, oldest first: one that a later one reaches tells nothing more. The last one holds still."""

    def note(self, now_s: float, value: Number) -> None:
        """From now on it is `value`."""
        if self._first_s is None:
            self._first_s = now_s
        if not self._values or self._values[-1][1] != value:
            self._end_last(now_s)
            while self._values and self._values[-1][1] <= value:
                self._values.pop()
            self._values.append((inf, value))
        self._forget(now_s)

    def _end_last(self, now_s: float) -> None:
        if self._values:
            self._values[-1] = (now_s, self._values[-1][1])

    def peak(self, now_s: float) -> Number:
        """The highest value that held at any time remembered; `nothing` before the first note."""
        self._forget(now_s)
        return self._values[0][1] if self._values else self._nothing

    def is_settled(self, now_s: float) -> bool:
        """Whether there are notes of the whole span."""
        return self._first_s is not None and now_s - self._first_s >= self._remembered_s

    def _forget(self, now_s: float) -> None:
        while self._values and self._values[0][0] <= now_s - self._remembered_s:
            self._values.popleft()
