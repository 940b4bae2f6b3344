"""Shares the event loop among the connections of the HTTP door: received bytes are parsed in slices, in turn.

A peer chooses how long its bytes take to parse: 256 KB that arrive at once can be 43,000 chunks of one byte.
"""

import time
from collections.abc import Callable
from typing import Protocol

SLICE_BYTES = 4_096
PARSE_BUDGET_S = 0.004
"""Seconds of one turn of the event loop for parsing, of all connections together. The last slice may exceed it."""


class SliceParser(Protocol):
    """A connection with bytes to parse."""

    def parse_slice(self) -> bool:
        """Parse the next slice; True if another one can be parsed now."""
        ...


class ParseTurns:
    """Owns the queue of connections with bytes to parse. `soon` schedules a callback in the loop's next turn."""

    def __init__(
        self, soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._soon = soon
        self._clock = clock
        self._waiting: dict[SliceParser, None] = {}
        self._left_s = PARSE_BUDGET_S
        self._is_parsing = False
        self._is_called = False

    def add(self, parsing: SliceParser) -> None:
        """The connection has bytes: they are parsed now if this turn has time left, else in one of the next turns."""
        self._waiting[parsing] = None
        if not self._is_parsing:
            self._parse()

    def remove(self, parsing: SliceParser) -> None:
        """The connection is closed."""
        self._waiting.pop(parsing, None)

    def _parse(self) -> None:
        self._is_parsing = True
        try:
            while self._waiting and self._left_s > 0:
                self._parse_first()
        finally:
            self._is_parsing = False
            if not self._is_called:
                self._is_called = True
                self._soon(self._next_turn)

    def _parse_first(self) -> None:
        first = next(iter(self._waiting))
        del self._waiting[first]
        began_s = self._clock()
        if first.parse_slice():
            self._waiting[first] = None  # behind the others
        self._left_s -= self._clock() - began_s

    def _next_turn(self) -> None:
        self._is_called = False
        self._left_s = PARSE_BUDGET_S
        if self._waiting:
            self._parse()
