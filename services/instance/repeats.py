"""The step that has the rows of the one before: most are, while nobody comes, ends, leaves or waits.

Where everybody who may run decodes, and each has a slot for its next token already, the next step follows from the last
one alone: no policy is asked again, for it sees the same candidates, and no slot table. That nobody's turn has come is
seen by the list of those that run, which is another one after every change. Knows no engine and takes no decision.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import I8, I32, I64, i32, i64
from services.instance.sequences import Sequence


@dataclass(slots=True)
class Decoding:
    """Where all that run have decode rows: the list of them, and what their tokens' messages have in common.

    `dispatcher` is None where they are not all one's.
    """

    running: list[Sequence]
    dispatcher: Address | None
    requests: I64
    attempts: I32


@dataclass(slots=True)
class Rows:
    """An outstanding step's rows, in columns: whose, its number then, where the row stops, whether it samples."""

    sequences: list[Sequence]
    numbers: I64
    stops: I64
    samples: I8
    decoding: Decoding | None = None


@dataclass(slots=True)
class Extents:
    """The slots of a step's rows, in columns."""

    row: I32
    start: I64
    length: I64

    def add(self, row: int, start: int, length: int) -> None:
        """One more, of that row."""
        self.row.append(row)
        self.start.append(start)
        self.length.append(length)


def no_extents() -> Extents:
    """Columns to be filled."""
    return Extents(i32(), i64(), i64())


class Repeats:
    """Owns the last step, as long as it can be followed by its like."""

    def __init__(self) -> None:
        self._last: tuple[Rows, Extents] | None = None
        self._left = 0

    def forget(self) -> None:
        """Nothing follows."""
        self._last = None

    def note(self, running: list[Sequence], rows: Rows, starts: I64, extents: Extents) -> None:
        """A step was composed of these, where `running` might have had rows."""
        self._last = None
        if not len(running) == len(rows.sequences) == len(extents.row):
            return
        left = 1 << 30
        for sequence, start, stop in zip(rows.sequences, starts, rows.stops, strict=True):
            place = sequence.place
            if stop - start != 1 or stop <= len(place.tokens) or sequence.trial_stop:
                return
            left = min(left, sequence.run[1] - stop, place.prompt_tokens + place.max_tokens - 1 - stop)
        rows.decoding = _decoding(running)
        self._last, self._left = (rows, extents), left

    def follow(self, running: list[Sequence]) -> tuple[Rows, I64, Extents] | None:
        """Rows, starts and slots of the next step, each a token further. None: it must be composed."""
        if self._last is None or self._left < 1:
            return None
        before, slots = self._last
        if before.decoding is None or before.decoding.running is not running:
            return None
        stops = i64([stop + 1 for stop in before.stops])
        extents = Extents(slots.row, i64([slot + 1 for slot in slots.start]), slots.length)
        for sequence in before.sequences:
            sequence.computed += 1
            sequence.pending += 1
            sequence.in_steps += 1
        rows = Rows(before.sequences, before.numbers, stops, before.samples, before.decoding)
        self._last, self._left = (rows, extents), self._left - 1
        return rows, before.stops, extents


def _decoding(running: list[Sequence]) -> Decoding:
    first = running[0].dispatcher
    is_one = all(sequence.dispatcher == first for sequence in running)
    requests = i64([sequence.place.request for sequence in running])
    attempts = i32([sequence.place.attempt for sequence in running])
    return Decoding(running, first if is_one else None, requests, attempts)


