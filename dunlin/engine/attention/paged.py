"""The CPU backend with a kernel of its own: reads KV where it lies, however many runs of slots that are.

One call computes all short rows of a batch. Longer rows are cut into blocks of queries and, where a piece would get too
long, of keys, whose results merge in fp32.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dunlin.engine.attention.base import (
    DECODE_PAIRS,
    PIECE_PAIRS,
    PLAIN,
    AttentionKind,
    BatchRow,
    LocalRows,
    PartialResult,
)
from dunlin.engine.attention.native.library import COLUMNS, PagedKernel, load_kernel
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.row_results import RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, count_below

QUERY_BLOCK = 64
"""Queries of a piece, at most; these and `PIECE_PAIRS` are times the kernel's `pace`."""
# Reading a key costs as much as this many queries' arithmetic on it.
LEAST_QUERIES = PIECE_PAIRS // DECODE_PAIRS


class PagedAttention:
    """See `Attention`. :raises KernelUnavailable: `plan`, where there is no kernel."""

    def __init__(self, kernel: PagedKernel | None = None) -> None:
        self._given = kernel
        self._decode_runs: DecodeRuns | None = None

    @cached_property
    def kernel(self) -> PagedKernel:
        """:raises KernelUnavailable: there is none."""
        return self._given or load_kernel()

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
        kernel = self.kernel.of(kind)
        if not isinstance(rows, LocalRows):
            return _planned(kernel, rows, _cut(kernel, rows, range(len(rows))))
        columns = zip(rows.starts, rows.stops, rows.lengths, strict=True)
        decoding = [at for at, row in enumerate(columns) if row[1] - row[0] == 1 and row[2] <= DECODE_PAIRS]
        pieces = self._decode_pieces(kernel, rows, decoding) if decoding else []
        others = sorted(set(range(len(rows))) - set(decoding)) if len(decoding) < len(rows) else []
        return _planned(kernel, rows, [*pieces, *_cut(kernel, rows, others)])

    def share(self, held: Sequence[range], length: int) -> tuple[list[tuple[range, ...]], list[range]]:
        """One result over all of it: each query is answered once."""
        return [tuple(held)], []

    def _decode_pieces(self, kernel: PagedKernel, rows: LocalRows, chosen: Sequence[int]) -> list[Piece]:
        if self._decode_runs is None or not self._decode_runs.fit(rows, chosen):
            self._decode_runs = DecodeRuns(rows, chosen)
        return list(self._decode_runs.pieces(kernel, rows, chosen))


def _planned(kernel: PagedKernel, rows: Sequence[BatchRow], pieces: Iterable[Piece]) -> PiecewisePlan:
    return PiecewisePlan(rows, list(pieces), PagedCutter(kernel, rows))


class PagedCutter:
    """See `ArrivalCutter`."""

    def __init__(self, kernel: PagedKernel, rows: Sequence[BatchRow]) -> None:
        self._kernel = kernel
        self._rows = rows

    def check(self, row: int, part: PartialResult) -> None:
        """Any partial result merges."""

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterator[Piece]:
        """See `ArrivalCutter`."""
        if isinstance(arrived[-1], RoomSpan):
            yield from _pieces_of_span(self._kernel, row, self._rows[row], arrived[-1])


def _cut(kernel: PagedKernel, rows: Sequence[BatchRow], chosen: Iterable[int]) -> Iterator[Piece]:
    """Rows of one small cell together; the cells of other rows in order."""
    together: list[Cell] = []
    cost = 0
    for index in chosen:
        row = rows[index]
        if not _is_small(row, kernel):
            for span in row.keys:
                yield from _pieces_of_span(kernel, index, row, span)
            continue
        positions = row.keys[0].positions
        begin = count_below(positions, kernel.kind.first_seen(row.queries[0]))
        cell = Cell(index, row, row.keys[0], 0, row.tokens, begin, len(positions))
        if together and cost + cell.cost > PIECE_PAIRS * kernel.pace:
            yield _together(kernel, together)
            together, cost = [], 0
        together.append(cell)
        cost += cell.cost
    if together:
        yield _together(kernel, together)


def _together(kernel: PagedKernel, cells: Sequence["Cell"]) -> Piece:
    rows, table = tuple(cell.index for cell in cells), CellTable(cells)
    return Piece(rows, None, 0, _Packed(kernel, rows, table.rows, table.run_at, table.run_slot).compute)


def _pieces_of_span(kernel: PagedKernel, index: int, row: BatchRow, span: KeySpan) -> Iterator[Piece]:
    for at, cell in enumerate(_cut_cells(index, row, span, kernel)):
        yield Piece((index,), span.positions, at, _Single(kernel, cell, CellTable([cell])).compute)


class DecodeRuns:
    """The slots of a batch's decode rows as the kernel reads them: made once for all the steps in which they, and their
    runs of slots, stay the same.
    """

    def __init__(self, rows: LocalRows, chosen: Sequence[int]) -> None:
        self._runs = [rows.runs[at] for at in chosen]
        counts = torch.tensor([len(run_at) for run_at, _ in self._runs], dtype=torch.int64)
        self.run_at = _joined([run_at for run_at, _ in self._runs])
        self.run_slot = _joined([run_slot for _, run_slot in self._runs])
        # Token, out, tokens, query at, step, key at, step, from, to, run begin, count.
        self._table = torch.tensor([0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0]).repeat(len(chosen), 1)
        self._table[:, -2] = counts.cumsum(0) - counts
        self._table[:, -1] = counts

    def fit(self, rows: LocalRows, chosen: Sequence[int]) -> bool:
        """Whether these rows have these runs."""
        return [rows.runs[at] for at in chosen] == self._runs

    def table(self, rows: LocalRows, chosen: Sequence[int], window: int) -> Tensor:
        """What the kernel reads of the chosen rows: a row each, as `CellTable` has them."""
        table = self._table.clone()
        table[:, 0] = table[:, 1] = torch.tensor([rows.starts[at] for at in chosen])
        table[:, 8] = torch.tensor([rows.lengths[at] for at in chosen])
        table[:, 3] = table[:, 8] - 1
        if window:
            table[:, 7] = (table[:, 8] - window).clamp_min(0)
        return table

    def pieces(self, kernel: PagedKernel, rows: LocalRows, chosen: Sequence[int]) -> Iterator[Piece]:
        """The chosen rows, as many in a piece as may be."""
        window = kernel.kind.window
        lengths = [rows.lengths[at] for at in chosen]
        table = self.table(rows, chosen, window)
        if window:
            lengths = [min(length, window) for length in lengths]
        for start, stop in _within(lengths, DECODE_PAIRS):
            members = tuple(chosen[start:stop])
            packed = _Packed(kernel, members, table[start:stop], self.run_at, self.run_slot)
            yield Piece(members, None, 0, packed.compute)


def _within(lengths: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Cut into stretches whose sum is at most `most`."""
    start = total = 0
    for at, length in enumerate(lengths):
        if total + length > most:
            yield start, at
            start, total = at, 0
        total += length
    yield start, len(lengths)


def _joined(arrays: "Sequence[array[int]]") -> Tensor:
    return torch.frombuffer(bytearray(b"".join(arrays)), dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Cell:
    """Queries `[first, stop)` of row number `index` against keys `[start, end)` of a span."""

    index: int
    row: BatchRow
    span: KeySpan
    first: int
    stop: int
    start: int
    end: int

    @property
    def cost(self) -> int:
        """In pairs of a row of many queries."""
        return max(self.stop - self.first, LEAST_QUERIES) * (self.end - self.start)


def _is_small(row: BatchRow, kernel: PagedKernel) -> bool:
    """Whether a row is one cell."""
    if len(row.keys) != 1 or row.awaited or isinstance(row.keys[0], RoomSpan):
        return False
    if row.tokens > QUERY_BLOCK * kernel.pace:
        return False
    return max(row.tokens, LEAST_QUERIES) * len(row.keys[0].positions) <= PIECE_PAIRS * kernel.pace


def _cut_cells(index: int, row: BatchRow, span: KeySpan, kernel: PagedKernel) -> Iterator[Cell]:
    """A row's cells over one span, block after block of queries; at least one for each."""
    block = QUERY_BLOCK * kernel.pace
    for first in range(0, row.tokens, block):
        stop = min(first + block, row.tokens)
        end = count_below(span.positions, row.queries[stop - 1] + 1)
        width = PIECE_PAIRS * kernel.pace // max(stop - first, LEAST_QUERIES)
        begin = min(count_below(span.positions, kernel.kind.first_seen(row.queries[first])), end)
        for start in range(begin, max(end, begin + 1), width):
            yield Cell(index, row, span, first, stop, start, min(start + width, end))


class CellTable:
    """What the kernel reads of some cells: a row each, and their runs of slots."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        columns, run_at, run_slot = array("q"), array("q"), array("q")
        for cell in cells:
            at, slot = _runs(cell.span)
            token, queries, positions = cell.row.start + cell.first, cell.row.queries, cell.span.positions
            columns.extend((token, token, cell.stop - cell.first, queries[cell.first], queries.step))
            columns.extend((positions.start, positions.step, cell.start, cell.end, len(run_at), len(at)))
            run_at.extend(at)
            run_slot.extend(slot)
        self.rows = torch.frombuffer(columns, dtype=torch.int64).view(-1, COLUMNS)
        self.run_at = torch.frombuffer(run_at, dtype=torch.int64)
        self.run_slot = torch.frombuffer(run_slot, dtype=torch.int64)


def _runs(span: KeySpan) -> "tuple[array[int], array[int]]":
    return (_ROOM, _ROOM) if isinstance(span, RoomSpan) else (span.run_at, span.run_slot)


_ROOM = array("q", [0])
OUT, TOKENS = 1, 2
"""Columns of `CellTable.rows`: where a cell's first result goes, and how many queries it has."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """Several rows' only cells, straight into the results."""

    kernel: PagedKernel
    rows: tuple[int, ...]
    table: Tensor
    run_at: Tensor
    run_slot: Tensor

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        table = self.table
        if len(rows) < len(self.rows):
            due = set(rows)
            table = table[[at for at, row in enumerate(self.rows) if row in due]]
        self.kernel.attend(results.query, layer_kv, table, self.run_at, self.run_slot, results.out, results.lse)


@dataclass(frozen=True, slots=True)
class _Single:
    """One cell of a row that has several: its result is fp32 and merges, unless it is all that its queries have."""

    kernel: PagedKernel
    cell: Cell
    table: CellTable

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        cell = self.cell
        keys = cell.span.room if isinstance(cell.span, RoomSpan) else layer_kv
        is_last = len(cell.row.keys) == 1 and not cell.row.awaited and self._is_last
        if is_last and not results.has_parts(cell.index, cell.first):
            run_at, run_slot = self.table.run_at, self.table.run_slot
            self.kernel.attend(results.query, keys, self.table.rows, run_at, run_slot, results.out, results.lse)
            return
        out = results.query.new_empty(cell.stop - cell.first, *results.query.shape[1:], dtype=torch.float32)
        lse = out.new_empty(out.shape[:2])
        placed = self.table.rows.clone()
        placed[0, OUT] = 0
        self.kernel.attend(results.query, keys, placed, self.table.run_at, self.table.run_slot, out, lse)
        results.put(cell.index, cell.first, (out, lse), is_last)

    @property
    def _is_last(self) -> bool:
        return self.cell.end == count_below(self.cell.span.positions, self.cell.row.queries[self.cell.stop - 1] + 1)
