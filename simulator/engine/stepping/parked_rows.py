"""The parked rows of a modelled engine: each stands where it left its step, bounded in number and tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

from dunlin.messages.engine import Resume
from dunlin.messages.types import i8, i32, i64
from simulator.engine.stepping.step_queue import QueuedSimStep, ResumedRows


@dataclass(frozen=True, slots=True)
class SimulatedParkedRow:
    """A row `[start, stop)` of a sequence of which `units` are done; it writes `slots`, and samples if `sample`."""

    sequence: int
    start: int
    stop: int
    sample: int
    slots: list[int]
    units: int


class SimulatedParkedRows:
    """Owns the parked rows, one per sequence: at most `most_rows`, of at most `most_tokens` in all.

    Rows that a queued step is to resume take their room until it begins.
    """

    def __init__(self, most_rows: int, most_tokens: int) -> None:
        self._most_rows = most_rows
        self._most_tokens = most_tokens
        self._rows: dict[int, SimulatedParkedRow] = {}
        self._claimed: dict[int, SimulatedParkedRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._rows

    @property
    def tokens(self) -> int:
        """Tokens of all rows that take room."""
        return sum(row.stop - row.start for rows in (self._rows, self._claimed) for row in rows.values())

    def park(self, row: SimulatedParkedRow) -> bool:
        """Keep a row; False: there is no room for it."""
        if (
            len(self._rows) + len(self._claimed) >= self._most_rows
            or self.tokens + row.stop - row.start > self._most_tokens
        ):
            return False
        self._rows[row.sequence] = row
        return True

    def forget(self, sequence: int) -> None:
        """Drop the sequence's row; nothing if it has none."""
        self._rows.pop(sequence, None)

    def free(self, sequences: Iterable[int]) -> None:
        """The rows of these sequences are resumed, or will not be: they take no room any more."""
        for number in sequences:
            self._claimed.pop(number, None)

    def places(self, sequences: Iterable[int]) -> set[int]:
        """The different places (units) at which the rows of `sequences` stand."""
        return {self._rows[number].units for number in sequences if number in self._rows}

    def take(self, message: Resume, layout: int) -> QueuedSimStep:
        """The parked rows of a `Resume`, which stand at one place, as a step; a sequence without one computes nothing.

        `message.sequence` names each sequence once.
        """
        self._claimed |= {number: self._rows[number] for number in message.sequence if number in self._rows}
        rows = [self._rows.pop(number, SimulatedParkedRow(number, 0, 0, 0, [], 0)) for number in message.sequence]
        slots = [(index, slot) for index, row in enumerate(rows) for slot in row.slots]
        columns = ResumedRows(
            message.step,
            message.sequence,
            i64(row.start for row in rows),
            i64(row.stop for row in rows),
            i8(row.sample for row in rows),
            i32(index for index, _ in slots),
            i64(slot for _, slot in slots),
            i64(1 for _ in slots),
            message.after,
            layout,
        )
        return QueuedSimStep(columns, list(range(len(rows))), max(row.units for row in rows), is_resumed=True)
