"""Takes the rows that an `Interrupt` names out of the running step and of queued ones, each with its own fate."""

from collections.abc import Iterable

from dunlin.messages.engine import Interrupt, Interrupted, Step
from dunlin.messages.types import Verdict, i8, i32, i64
from simulator.engine.kv_audit import KvAudit
from simulator.engine.sequences import SimulatedSequences
from simulator.engine.stepping.parked_rows import SimulatedParkedRow, SimulatedParkedRows
from simulator.engine.stepping.running_step import LAYER_UNITS
from simulator.engine.stepping.step_queue import QueuedSimStep, SimulatedStepQueue, row_positions, row_slots


class LeavingRows:
    """The rows that leave at one `Interrupt`, as the columns of its answer."""

    def __init__(
        self, message: Interrupt, sequences: SimulatedSequences, parked: SimulatedParkedRows, audit: KvAudit | None
    ):
        self._message = message
        self._named = frozenset(message.sequence)
        self._sequences = sequences
        self._parked = parked
        self._audit = audit
        self._columns: tuple[list[int], ...] = ([], [], [], [])
        self._parked_step = 0

    def take_running(self, queued: QueuedSimStep) -> None:
        """Take named rows out of the running step, of which `queued.units` are done: park them or forget their work."""
        if self._message.step not in (0, queued.step.step):
            return
        for row in self._take(queued, self._named):
            self._add(queued, row, queued.units, self._leave(queued, row))

    def take_closed(self, queued: QueuedSimStep) -> None:
        """Take the rows of closed sequences out of a running step that is to be suspended."""
        closed = frozenset(queued.sequences) & self._sequences.closing.keys()
        for row in self._take(queued, closed) if closed else ():
            self._add(queued, row, queued.units, self._leave(queued, row))

    def take_queued(self, queue: SimulatedStepQueue) -> None:
        """Take named rows out of the queued steps up to the message's number, or of the one that it names."""
        only, up_to = self._message.step, self._message.up_to_step
        for queued in queue.steps:
            if queued.step.step == only if only else queued.step.step <= up_to:
                for row in self._take(queued, self._named):
                    self._add(queued, row, 0, False)
                    self._parked.free([queued.step.sequence[row]])

    def park(self, queued: QueuedSimStep) -> None:
        """A step with peers is parked whole."""
        self._parked_step = queued.step.step
        for row in queued.rows:
            if queued.has_begun:
                self._set_aside(queued, row)
            self._add(queued, row, queued.units, True)

    def answer(self) -> Interrupted:
        """The answer to the message."""
        sequence, step, units, parked = self._columns
        layers = i32(done // LAYER_UNITS for done in units)
        blocks = i32(done % LAYER_UNITS for done in units)
        return Interrupted(
            i64(sequence), self._message.ticket, i64(step), layers, blocks, i8(parked), self._parked_step
        )  # fmt: skip

    def _take(self, queued: QueuedSimStep, named: frozenset[int]) -> list[int]:
        queued.is_serving = queued.is_serving and bool(named)
        numbers = queued.step.sequence
        leaving = [row for row in queued.rows if not named or numbers[row] in named]
        if leaving:
            queued.rows = [row for row in queued.rows if named and numbers[row] not in named]
            queued.left += [numbers[row] for row in leaving]
        return leaving

    def _add(self, queued: QueuedSimStep, row: int, units: int, parked: bool) -> None:
        for column, value in zip(
            self._columns, (queued.step.sequence[row], queued.step.step, units, parked), strict=True
        ):
            column.append(value)

    def _leave(self, queued: QueuedSimStep, row: int) -> bool:
        """The row's KV is not written whole: what is valid ends at its start. Returns whether it is parked.

        A row of a step over some layers only is not: its hidden states lie in a room that others may need. Neither is
        one of a closed sequence.
        """
        step, has_peers = queued.step, queued.has_peers
        number, start, stop, slots = self._set_aside(queued, row)
        is_closed = number in self._sequences.closing
        is_kept = self._message.verdict is Verdict.SUSPEND and queued.layers is None and not has_peers and not is_closed
        parked = is_kept and self._parked.park(
            SimulatedParkedRow(number, start, stop, step.sample[row], slots, queued.units)
        )
        return parked

    def _set_aside(self, queued: QueuedSimStep, row: int) -> tuple[int, int, int, list[int]]:
        """What is valid of the row's sequence ends at its start; returns (sequence, start, stop, slots)."""
        step = queued.step
        number, start, stop = step.sequence[row], step.start[row], step.stop[row]
        sequence, slots = self._sequences.computing(number), row_slots(step)[row][: stop - start]
        sequence.kv_tokens = min(sequence.kv_tokens, start)
        if self._audit is not None:
            self._audit.left(number, start, slots)
        return number, start, stop, slots


def leaving_tokens(queued: QueuedSimStep, interrupts: Iterable[Interrupt]) -> int:
    """Tokens of the rows of the running step that the interrupts take out. The engine sets aside what was computed of
    them whether they are parked or not.
    """
    step, named = queued.step, [frozenset(message.sequence) for message in interrupts]
    leaving = [row for row in queued.rows if any(not each or step.sequence[row] in each for each in named)]
    if isinstance(step, Step):
        return sum(len(row_positions(step, row)) for row in leaving)
    return sum(step.stop[row] - step.start[row] for row in leaving)
