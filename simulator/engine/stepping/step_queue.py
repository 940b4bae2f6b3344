"""The queue of a modelled engine: steps in order of arrival, and which of them may start."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from operator import add, eq, sub

from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind, Ints
from simulator.engine.errors import ContractBroken


@dataclass(slots=True)
class ResumedRows:
    """The columns of parked rows that go on as the step of a `Resume`: those of a `Step`."""

    step: int
    sequence: Ints
    start: Ints
    stop: Ints
    sample: Ints
    extent_row: Ints
    extent_start: Ints
    extent_length: Ints
    after: Ints
    layout: int


RowColumns = Step | ResumedRows


@dataclass(slots=True)
class QueuedSimStep:
    """A step of which `rows` are to run; those of the sequences `left` left it at an `Interrupt`, those of `dropped`
    had ended by then.

    A step of a `Resume` begins `units` of its work later (see `running_step.py`): where its rows stood.
    `is_repeat`: it `repeats` the step received before. `layers`: those that it computes; None: all of the model.
    `has_peers`: steps of other engines compute together with it; `is_serving`: it answers for rows of peers;
    `has_begun`: it ran, and was suspended.
    """

    step: RowColumns
    rows: list[int]
    units: int = 0
    is_resumed: bool = False
    layers: range | None = None
    is_serving: bool = False
    left: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    has_peers: bool = False
    has_begun: bool = False
    is_repeat: bool = False

    @property
    def row_tokens(self) -> int:
        """Tokens of the rows that are to run."""
        return sum(len(_positions(self.step, row)) for row in self.rows)

    @property
    def sequences(self) -> list[int]:
        """The sequences of the rows that are to run."""
        return [self.step.sequence[row] for row in self.rows]


class SimulatedStepQueue:
    """Owns the steps that have not begun. `is_landing(move)`: the transfer is not answered."""

    def __init__(self, is_landing: Callable[[int], bool]) -> None:
        self.steps: deque[QueuedSimStep] = deque()
        self._is_landing = is_landing

    def __len__(self) -> int:
        return len(self.steps)

    def append(self, queued: QueuedSimStep) -> None:
        """Add a step behind all others."""
        self.steps.append(queued)

    def take_ready(self) -> QueuedSimStep | None:
        """Remove and return the first step that waits for no transfer and shares no sequence with one that waits
        before it.
        """
        steps = self.steps
        if not steps:
            return None
        if not self._waits(steps[0]):
            return steps.popleft()
        held = set(steps[0].sequences)
        for index in range(1, len(steps)):
            queued = steps[index]
            if held.isdisjoint(queued.sequences) and not self._waits(queued):
                del steps[index]
                return queued
            held.update(queued.sequences)
        return None

    def with_peers(self, number: int) -> QueuedSimStep | None:
        """The step of that number; None if there is none, or it has no peers."""
        return next((each for each in self.steps if each.step.step == number and each.has_peers), None)

    def take_empty(self) -> list[QueuedSimStep]:
        """Remove and return the steps without rows, in order."""
        empty = [queued for queued in self.steps if not queued.rows and not queued.is_serving]
        if empty:
            self.steps = deque(queued for queued in self.steps if queued.rows or queued.is_serving)
        return empty

    def _waits(self, queued: QueuedSimStep) -> bool:
        after = queued.step.after
        return bool(after) and any(map(self._is_landing, after))


def check_step(step: Step) -> None:
    """The checks that need no state of sequences.

    Raises:
        ContractBroken: the step's columns contradict each other.
    """
    rows = len(step.sequence)
    if not (rows or step.serve is not None) or len(set(step.sequence)) != rows:
        raise ContractBroken(f"step {step.step} names {rows} sequences, {len(set(step.sequence))} different ones")
    given = [0] * rows
    for row, length in zip(step.extent_row, step.extent_length, strict=True):
        given[row] += length
    counts = [len(row_positions(step, row)) for row in range(rows)] if step.stride else map(sub, step.stop, step.start)
    for row, count in enumerate(counts):
        if given[row] < count:
            raise ContractBroken(f"step {step.step}: row {row} writes {count} tokens into {given[row]} slots")


def repeats(step: Step, before: Step) -> bool:
    """Whether a step without peers has the very columns of the one before and each row is one token further: then what
    `check_step` found of that one holds for it.
    """
    return (
        step.sequence is before.sequence
        and step.start is before.stop
        and step.sample is before.sample
        and step.extent_row is before.extent_row
        and step.extent_length is before.extent_length
        and len(step.stop) == len(step.start)
        and all(map(eq, step.stop, map(add, step.start, repeat(1))))
    )


def row_positions(step: Step, row: int) -> range:
    """The tokens that a row computes."""
    return range(step.start[row], step.stop[row], step.stride[row] if step.stride else 1)


def _positions(step: RowColumns, row: int) -> range:
    return row_positions(step, row) if isinstance(step, Step) else range(step.start[row], step.stop[row])


def is_unsupported(step: Step) -> bool:
    """Whether the step asks for what no engine does: spans, stripes, or retention without a group for it."""
    has_peers = step.group in (GroupKind.RING, GroupKind.MASTERS)
    if has_peers != bool(step.peers):
        return True
    if not has_peers:
        asks = bool(step.span_row) or step.serve is not None or step.keep is not None
        return asks or (len(step.stride) > 0 and any(one != 1 for one in step.stride))
    asked = step.span_asked or [int(step.group is GroupKind.MASTERS)] * len(step.span_row)
    striped = {row for row, is_asked in zip(step.span_row, asked, strict=True) if not is_asked}
    named = {row for row, one in enumerate(step.stride) if one != 1} | set(step.keep.row if step.keep else ())
    return not named <= striped


def row_slots(step: RowColumns) -> list[list[int]]:
    """The slots of each row, by position."""
    spans: list[list[int]] = [[] for _ in step.sequence]
    for row, start, length in zip(step.extent_row, step.extent_start, step.extent_length, strict=True):
        spans[row].extend(range(start, start + length))
    return spans


def slots_of_rows(queued: QueuedSimStep) -> list[int]:
    """The slots that the step's rows write; those of rows that left are not among them."""
    slots = row_slots(queued.step)
    return [slot for row in queued.rows for slot in slots[row]]
