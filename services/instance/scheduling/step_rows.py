"""The rows of a step, in columns, and a row that left one. Knows no engine, decides nothing."""

from collections.abc import Collection
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import I8, I32, I64, i8, i64
from services.instance.sequence.sequence import Sequence


@dataclass(slots=True)
class SteadyDecodeBatch:
    """A batch in which every running sequence has a decode row, and the common columns of its token messages.

    `dispatcher` is None if the sequences have several.
    """

    running: list[Sequence]
    dispatcher: Address | None
    requests: I64
    attempts: I32


@dataclass(slots=True)
class LedgerRow:
    """One row outside the columns of its step: it left `step`, after `layer` layers and `block` pieces of attention."""

    sequence: Sequence
    number: int
    step: int
    start: int
    stop: int
    samples: int
    layer: int = 0
    block: int = 0

    def roll_back(self) -> None:
        """The row will not be computed: the sequence's KV ends at its start at the latest."""
        self.sequence.issued = min(self.sequence.issued, self.start)
        self.sequence.pending -= self.samples


@dataclass(slots=True)
class StepRows:
    """An outstanding step's rows, in columns: sequence, its number then, start and stop of the row, whether it samples.

    `decode_batch` is set where every sequence that ran when the step was composed has a decode row in it.
    """

    sequences: list[Sequence]
    numbers: I64
    starts: I64
    stops: I64
    samples: I8
    decode_batch: SteadyDecodeBatch | None = None

    def rows(self, step: int) -> list[LedgerRow]:
        """The rows as objects; `step` is the number of their step."""
        columns = zip(self.sequences, self.numbers, self.starts, self.stops, self.samples, strict=True)
        return [
            LedgerRow(sequence, number, step, start, stop, samples)
            for sequence, number, start, stop, samples in columns
        ]

    def split(self, step: int, leaving: Collection[int]) -> tuple["StepRows", list[LedgerRow]]:
        """The step without the rows of the sequences numbered `leaving`, and those rows."""
        rows = self.rows(step)
        return of_rows([row for row in rows if row.number not in leaving]), [
            row for row in rows if row.number in leaving
        ]


def of_rows(rows: list[LedgerRow]) -> StepRows:
    """These rows, in columns."""
    return StepRows(
        [row.sequence for row in rows],
        i64([row.number for row in rows]),
        i64([row.start for row in rows]),
        i64([row.stop for row in rows]),
        i8([row.samples for row in rows]),
    )
