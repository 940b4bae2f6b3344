"""Fast path for a step with the rows of the step before: most steps, while no sequence starts, ends, leaves or waits.

Where every runnable sequence decodes, and each has a slot for its next token already, the next step follows from the
last one alone: neither the policy, which would see the same candidates, nor the slot table is asked. The list of
running sequences is replaced at every change: its identity shows that none happened. Knows no engine, decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.messages.types import I32, I64, i32, i64
from services.instance.scheduling.step_rows import SteadyDecodeBatch, StepRows
from services.instance.sequence.sequence import Sequence


@dataclass(slots=True)
class SlotExtents:
    """The slots of a step's rows, in columns."""

    row: I32
    start: I64
    length: I64

    def add(self, row: int, start: int, length: int) -> None:
        """Add an extent of that row."""
        self.row.append(row)
        self.start.append(start)
        self.length.append(length)


def empty_extents() -> SlotExtents:
    """New columns, empty."""
    return SlotExtents(i32(), i64(), i64())


NextSlot = Callable[[Sequence], int | None]
"""The slot of a sequence's next position, allocated if it has none; None: no slot is free."""


class DecodeFastPath:
    """Owns the last step, as long as a step with the same rows can follow.

    `_next_slots` are the slots of the next positions of its rows, as long as these lie before `_run_ends`; that holds
    for every row in the next `_remaining_steps` steps.
    """

    def __init__(self) -> None:
        self._last_rows: StepRows | None = None
        self._extents = empty_extents()
        self._next_slots = i64()
        self._run_ends: list[int] = []
        self._remaining_steps = 0

    def clear(self) -> None:
        """Forget the last step: the next one must be composed."""
        self._last_rows = None

    def record(self, running: list[Sequence], rows: StepRows, extents: SlotExtents) -> None:
        """Remember a composed step, if every sequence of `running` has one decode row in it."""
        self._last_rows = None
        if not len(running) == len(rows.sequences) == len(extents.row):
            return
        for sequence, start, stop in zip(rows.sequences, rows.starts, rows.stops, strict=True):
            if stop - start != 1 or stop <= len(sequence.place.tokens) or sequence.trial_stop:
                return
        rows.decode_batch = _decode_batch(running)
        self._last_rows, self._extents = rows, extents
        self._next_slots = i64([slot + 1 for slot in extents.start])
        self._run_ends = [_run_end(sequence) for sequence in rows.sequences]
        self._count_remaining()

    def next_rows(self, running: list[Sequence], slot_of: NextSlot) -> tuple[StepRows, SlotExtents] | None:
        """Rows and slots of the next step, each a token further. None: it must be composed."""
        before = self._last_rows
        if before is None or before.decode_batch is None or before.decode_batch.running is not running:
            return None
        if self._remaining_steps < 1 and not self._continue_runs(before, slot_of):
            return None
        extents = SlotExtents(self._extents.row, self._next_slots, self._extents.length)
        for sequence in before.sequences:
            sequence.issued += 1
            sequence.pending += 1
            sequence.in_steps += 1
        stops = i64([stop + 1 for stop in before.stops])
        self._last_rows = rows = StepRows(
            before.sequences, before.numbers, before.stops, stops, before.samples, before.decode_batch
        )
        self._next_slots = i64([slot + 1 for slot in self._next_slots])
        self._remaining_steps -= 1
        return rows, extents

    def _continue_runs(self, rows: StepRows, slot_of: NextSlot) -> bool:
        """Find the next slots of rows whose run of slots ended; False if a sequence is at its last token."""
        for index, sequence in enumerate(rows.sequences):
            at = rows.stops[index]
            if at < self._run_ends[index]:
                continue
            slot = slot_of(sequence) if at < sequence.max_length - 1 else None
            if slot is None:
                return False
            self._next_slots[index] = slot
            self._run_ends[index] = _run_end(sequence)
        self._count_remaining()
        return self._remaining_steps > 0

    def _count_remaining(self) -> None:
        rows = self._last_rows
        left = [end - stop for end, stop in zip(self._run_ends, rows.stops, strict=True)] if rows is not None else []
        self._remaining_steps = min(left, default=0)


def _run_end(sequence: Sequence) -> int:
    """Positions before this one have slots in a row, and are not the last token's."""
    return min(sequence.slot_run[1], sequence.max_length - 1)


def _decode_batch(running: list[Sequence]) -> SteadyDecodeBatch:
    first = running[0].dispatcher
    is_one = all(sequence.dispatcher == first for sequence in running)
    requests = i64([sequence.place.request for sequence in running])
    attempts = i32([sequence.place.attempt for sequence in running])
    return SteadyDecodeBatch(running, first if is_one else None, requests, attempts)
