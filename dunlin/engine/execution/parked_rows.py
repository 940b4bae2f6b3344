"""Rows that left a step and can be resumed. Bounded in number and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.engine.decoder.row_progress import RowProgress
from dunlin.engine.execution.step_batch import StepError, StepRow


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row, where it stands, and the layers that its step computes."""

    row: StepRow
    progress: RowProgress
    layers: range

    @property
    def place(self) -> tuple[int, int, range]:
        """Rows that agree in this can be resumed together."""
        return self.progress.layer, self.progress.block, self.layers

    def check_kv(self) -> None:
        """:raises StepError: the sequence's slots changed while the row was parked."""
        row, state = self.row, self.row.state
        held = state.valid.tokens(range(self.progress.layer, self.layers.stop))
        if held < row.start or state.slots.length < row.stop:
            raise StepError(f"sequence {row.sequence}: slots up to {state.slots.length}, KV up to {held}")


class ParkedRows:
    """Owns the parked rows by sequence. One that a queued step has claimed is still here until that step begins."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._rows: dict[int, ParkedRow] = {}
        self._claimed: set[int] = set()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._rows

    def park(self, parked: ParkedRow) -> bool:
        """Keep a row; False: there is no room for it."""
        size_bytes = parked.progress.size_bytes
        if len(self._rows) >= self._rows_max or self.size_bytes + size_bytes > self._bytes_max:
            return False
        self._rows[parked.row.sequence] = parked
        self.size_bytes += size_bytes
        return True

    def claim(self, sequences: Sequence[int]) -> None:
        """Let a step that is queued now resume these rows.

        :raises StepError: one is not parked, another step has it already, or they do not stand at the same place.
        """
        for sequence in sequences:
            if sequence not in self._rows or sequence in self._claimed:
                raise StepError(f"sequence {sequence} has no parked row")
        places = {self._rows[sequence].place for sequence in sequences}
        if len(places) > 1:
            raise StepError(f"rows at different places (layer, block, layers): {sorted(places, key=str)}")
        self._claimed.update(sequences)

    def unclaim(self, sequences: Sequence[int]) -> None:
        """The step that was to resume these rows could not."""
        self._claimed.difference_update(sequences)

    def get(self, sequence: int) -> ParkedRow:
        return self._rows[sequence]

    def is_discardable(self, sequence: int) -> bool:
        """Whether a row of the sequence is parked and no queued step has claimed it."""
        return sequence in self._rows and sequence not in self._claimed

    def remove(self, sequence: int) -> ParkedRow | None:
        """Forget the sequence's row, claimed or not; None if it has none."""
        parked = self._rows.pop(sequence, None)
        if parked is not None:
            self._claimed.discard(sequence)
            self.size_bytes -= parked.progress.size_bytes
        return parked
