"""A pass as a queue of pieces, for backends that say what a piece computes."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dunlin.engine.attention.base import BatchRow, LocalRows, PartialResult, Result, RowState
from dunlin.engine.attention.row_results import RowResults
from dunlin.engine.attention.spans import RoomSpan

Compute = Callable[[RowResults, Tensor, Sequence[int]], None]
"""(results, layer_kv, rows) -> None: put the piece's results for those of its rows that are still there."""


Arrival = RoomSpan | PartialResult


@dataclass(frozen=True, slots=True)
class Piece:
    """Bounded work: for each of `rows` the `index`-th piece on its keys at positions `span`; None: on its only ones."""

    rows: tuple[int, ...]
    span: range | None
    index: int
    compute: Compute


class ArrivalCutter(Protocol):
    """Makes pieces of keys that arrive during a pass."""

    def check(self, row: int, part: PartialResult) -> None:
        """:raises ValueError: the partial result cannot be merged."""
        ...

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterable[Piece]:
        """What can be computed for a row now that the last of `arrived` has come and `missing` parts are awaited."""
        ...


def _awaited(rows: Sequence[BatchRow]) -> dict[int, set[range]]:
    return {index: set(row.awaited) for index, row in enumerate(rows) if row.awaited}


class PiecewisePass:
    """See `AttentionPass`."""

    def __init__(
        self,
        rows: Sequence[BatchRow],
        pieces: Iterable[Piece],
        query: Tensor,
        layer_kv: Tensor,
        cutter: ArrivalCutter,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._rows = rows
        self._queue = deque(pieces)
        self._done: list[Piece] = []
        self._layer_kv = layer_kv
        self._cutter = cutter
        self._results = RowResults(query, rows, dtype or query.dtype)
        self._left: set[int] = set()
        self._before: dict[int, Mapping[range, int]] = {}
        self._awaited = {} if isinstance(rows, LocalRows) else _awaited(rows)
        self._arrived: dict[int, list[Arrival]] = {}

    def __repr__(self) -> str:
        return f"[pieces: {len(self._done)} done, {len(self._queue)} left | awaited by: {sorted(self._awaited)}]"

    def resume(self, row: int, state: RowState) -> None:
        """Put a row where it stood. :raises ValueError: see `AttentionPlan.start`."""
        known = {range(self._rows[row].length), *self._rows[row].awaited}
        known |= {span.positions for span in self._rows[row].keys}
        unknown = [span for span in state.progress if span not in known]
        if unknown or len(state.query) != self._rows[row].tokens:
            raise ValueError(f"row {row} of {self._rows[row].queries} left with keys at {unknown}, which it has not")
        self._results.restore(row, state.out, state.lse, state.parts)
        self._before[row] = dict(state.progress)
        for part in state.arrived:
            self.add(row, part)

    @property
    def done(self) -> bool:
        """See `AttentionPass`."""
        self._drop()
        return not self._queue and not any(self._awaited.values())

    @property
    def size_bytes(self) -> int:
        """See `AttentionPass`."""
        arrived = [part for parts in self._arrived.values() for part in parts]
        return self._results.size_bytes + sum(part.size_bytes for part in arrived)

    def advance(self) -> bool:
        """See `AttentionPass`."""
        self._drop()
        if self._queue:
            piece = self._queue.popleft()
            piece.compute(self._results, self._layer_kv, self._due(piece))
            self._done.append(piece)
        self._drop()
        return bool(self._queue)

    def leave(self, row: int) -> RowState:
        """See `AttentionPass`."""
        if row in self._left:
            raise ValueError(f"row {row} has left the pass already")
        progress = dict(self._before.get(row, {}))
        for piece in self._done:
            if row in piece.rows:
                span = self._span(row, piece)
                progress[span] = max(piece.index + 1, progress.get(span, 0))
        parts, packed = self._results.parts_of(row), self._results.packed(row)
        self._left.add(row)
        self._awaited.pop(row, None)
        # A row alone takes the tensors with it: nothing is computed in them any more.
        query, out, lse = packed if len(self._rows) == 1 else [each.clone() for each in packed]
        return RowState(query, out, lse, parts, progress, self._partials(row))

    def add(self, row: int, span: Arrival) -> None:
        """See `AttentionPass`."""
        awaited = self._awaited.get(row, set())
        if span.positions not in awaited:
            raise ValueError(f"row {row} awaits keys at {sorted(awaited, key=str)}, not at {span.positions}")
        if isinstance(span, PartialResult):
            self._cutter.check(row, span)
        awaited.remove(span.positions)
        arrived = self._arrived.setdefault(row, [])
        arrived.append(span)
        self._queue.extend(self._cutter.pieces_of(row, arrived, len(awaited)))

    def result(self) -> Result:
        """See `AttentionPass`."""
        if not self.done:
            raise ValueError(f"attention is not done: {self}")
        for row in self._results.unfinished | self._arrived.keys():
            if row not in self._left:
                self._results.finish(row, self._partials(row))
        return self._results.out, self._results.lse

    def _partials(self, row: int) -> tuple[PartialResult, ...]:
        return tuple(part for part in self._arrived.get(row, ()) if isinstance(part, PartialResult))

    def _due(self, piece: Piece) -> Sequence[int]:
        """The rows that a piece is to be computed for."""
        if not self._left and not self._before:
            return piece.rows
        return [row for row in piece.rows if row not in self._left and piece.index >= self._begin(row, piece)]

    def _begin(self, row: int, piece: Piece) -> int:
        return self._before[row].get(self._span(row, piece), 0) if row in self._before else 0

    def _span(self, row: int, piece: Piece) -> range:
        return self._rows[row].keys[0].positions if piece.span is None else piece.span

    def _drop(self) -> None:
        """Forget pieces that no row needs any more."""
        while self._queue and not self._due(self._queue[0]):
            self._queue.popleft()


class PiecewisePlan:
    """See `AttentionPlan`. Its `pieces` are of the keys that are here; `cutter` makes those of keys that arrive."""

    def __init__(self, rows: Sequence[BatchRow], pieces: Sequence[Piece], cutter: ArrivalCutter) -> None:
        self._rows = rows
        self._pieces = pieces
        self._cutter = cutter

    def start(
        self,
        query: Tensor,
        layer_kv: Tensor,
        resumed: Mapping[int, RowState] | None = None,
        dtype: torch.dtype | None = None,
    ) -> PiecewisePass:
        started = PiecewisePass(self._rows, self._pieces, query, layer_kv, self._cutter, dtype)
        for row, state in (resumed or {}).items():
            started.resume(row, state)
        return started
