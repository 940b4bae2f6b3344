"""The GPU backend that always works: a Triton kernel that reads KV where it lies, whatever runs of slots that are.

All short rows of a batch are one piece: prompts in tiles of many lines, decode rows in tiles of few whose keys are
split over programs and merged. Longer rows are cut into blocks of queries, and of keys where a piece would get too
long; their results merge in fp32. How a row is cut depends on the row alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, LocalRows, PartialResult
from dunlin.engine.attention.kv_numbers import is_narrow
from dunlin.engine.attention.paged import Cell, CellTable, DecodeRuns
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.prompt_kernel import PromptKernel, plan_prompts
from dunlin.engine.attention.row_results import RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, count_below
from dunlin.engine.attention.tile_sizes import SIZES, TileSizes, split_counts
from dunlin.engine.attention.triton_tiles import (
    DeviceTable,
    TileLauncher,
    expand,
    find_tiles,
    has_long_runs,
    launch,
)

PIECE_PAIRS = 1 << 25
"""(query, key) pairs of one piece: about 1.5 ms for 32 heads of 128 at 400 TFLOP/s."""
QUERY_BLOCK = 1024
"""Queries of a piece of a long row."""
LEAST_QUERIES = 32
"""Reading a key costs as much as this many queries' arithmetic on it."""


class TritonAttention:
    """See `Attention`. `sizes`: of the kernels' tiles. `prompts` computes prompts instead, where it can."""

    def __init__(self, sizes: TileSizes = SIZES, prompts: PromptKernel | None = None) -> None:
        self._sizes = sizes
        self.prompts = prompts
        self._decode_runs: DecodeRuns | None = None

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
        """See `Attention`."""
        launcher = TileLauncher(kind, self._sizes, self.prompts)
        chosen = list(range(len(rows)))
        is_decode = isinstance(rows, LocalRows) and all(
            stop - start == 1 for start, stop in zip(rows.starts, rows.stops, strict=True)
        )
        if isinstance(rows, LocalRows) and is_decode and rows.starts:
            pieces = list(self._decode_pieces(launcher, rows, chosen))
        else:
            pieces = list(_cut(launcher, rows, chosen))
        return PiecewisePlan(rows, pieces, TritonCutter(launcher, rows))

    def share(self, held: Sequence[range], length: int) -> tuple[list[tuple[range, ...]], list[range]]:
        """See `Attention`."""
        return [tuple(held)], []

    def _decode_pieces(self, launcher: TileLauncher, rows: LocalRows, chosen: Sequence[int]) -> Iterator[Piece]:
        if self._decode_runs is None or not self._decode_runs.fit(rows, chosen):
            self._decode_runs = DecodeRuns(rows, chosen)
        runs = self._decode_runs
        table = runs.table(rows, chosen, launcher.kind.window)
        yield Piece(
            tuple(chosen), None, 0, _Packed(tuple(chosen), Tiles(launcher, table, runs.run_at, runs.run_slot)).compute
        )


class TritonCutter:
    """See `ArrivalCutter`."""

    def __init__(self, launcher: TileLauncher, rows: Sequence[BatchRow]) -> None:
        self._launcher = launcher
        self._rows = rows

    def check(self, row: int, part: PartialResult) -> None:
        """Any partial result merges."""

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterator[Piece]:
        """See `ArrivalCutter`."""
        if isinstance(arrived[-1], RoomSpan):
            yield from _pieces_of_span(self._launcher, row, self._rows[row], arrived[-1])


def _cut(launcher: TileLauncher, rows: Sequence[BatchRow], chosen: Iterable[int]) -> Iterator[Piece]:
    """Rows of one small cell together; the cells of other rows in order."""
    together: list[Cell] = []
    cost = 0
    for index in chosen:
        row = rows[index]
        if not _is_small(row):
            for span in row.keys:
                yield from _pieces_of_span(launcher, index, row, span)
            continue
        positions = row.keys[0].positions
        begin = count_below(positions, launcher.kind.first_seen(row.queries[0]))
        cell = Cell(index, row, row.keys[0], 0, row.tokens, begin, len(positions))
        if together and cost + _cost(cell) > PIECE_PAIRS:
            yield _together(launcher, together)
            together, cost = [], 0
        together.append(cell)
        cost += _cost(cell)
    if together:
        yield _together(launcher, together)


def _is_small(row: BatchRow) -> bool:
    """Whether a row is one cell."""
    if len(row.keys) != 1 or row.awaited or isinstance(row.keys[0], RoomSpan):
        return False
    return max(row.tokens, LEAST_QUERIES) * len(row.keys[0].positions) <= PIECE_PAIRS


def _cost(cell: Cell) -> int:
    return max(cell.stop - cell.first, LEAST_QUERIES) * (cell.end - cell.start)


def _together(launcher: TileLauncher, cells: Sequence[Cell]) -> Piece:
    rows, table = tuple(cell.index for cell in cells), CellTable(cells)
    tiles = Tiles(launcher, table.rows, table.run_at, table.run_slot)
    return Piece(rows, None, 0, _Packed(rows, tiles).compute)


def _pieces_of_span(launcher: TileLauncher, index: int, row: BatchRow, span: KeySpan) -> Iterator[Piece]:
    for at, cell in enumerate(_cut_cells(index, row, span, launcher.kind)):
        yield Piece((index,), span.positions, at, _Single(launcher, cell).compute)


def _cut_cells(index: int, row: BatchRow, span: KeySpan, kind: AttentionKind) -> Iterator[Cell]:
    """A row's cells over one span, block after block of queries; at least one for each."""
    for first in range(0, row.tokens, QUERY_BLOCK):
        stop = min(first + QUERY_BLOCK, row.tokens)
        end = count_below(span.positions, row.queries[stop - 1] + 1)
        width = max(PIECE_PAIRS // max(stop - first, LEAST_QUERIES), 1)
        begin = min(count_below(span.positions, kind.first_seen(row.queries[first])), end)
        for start in range(begin, max(end, begin + 1), width):
            yield Cell(index, row, span, first, stop, start, min(start + width, end))


class Tiles:
    """Some cells, whose table lies on the host until they are first computed. Then it is there for all layers."""

    def __init__(self, launcher: TileLauncher, table: Tensor, run_at: Tensor, run_slot: Tensor) -> None:
        self._launcher = launcher
        self._table = table
        self._run_at = run_at
        self._run_slot = run_slot
        self._there: DeviceTable | None = None

    def of(self, chosen: Sequence[int]) -> "Tiles":
        """Some of its rows."""
        return Tiles(self._launcher, self._table[list(chosen)], self._run_at, self._run_slot)

    def attend(self, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor) -> None:
        """Attention of every row into its place in `out` and `lse`; arguments as of `PagedKernel.attend`.

        :raises ValueError: dtypes or strides that the kernel does not take.
        """
        head_dim, kv_heads = query.shape[2], layer_kv.shape[2]
        inner = (kv_heads * head_dim, head_dim, 1)
        if query.dtype is not layer_kv.dtype and not is_narrow(layer_kv.dtype):
            raise ValueError(f"queries in {query.dtype}, KV in {layer_kv.dtype}")
        if layer_kv.stride()[1:] != inner or query.stride()[1:] != inner[1:] or not out.is_contiguous():
            raise ValueError(f"strides: queries {query.stride()}, KV {layer_kv.stride()}, out {out.stride()}")
        if self._there is None:
            self._there = self._place(query, kv_heads)
        launch(self._launcher, self._there, query, layer_kv, out, lse)

    def _place(self, query: Tensor, kv_heads: int) -> DeviceTable:
        """Copy the table to the device and look the slots up there."""
        table, sizes, device = self._table, self._launcher.sizes, query.device
        heads, head_dim = query.shape[1:]
        shapes, group = sizes.shapes(heads, kv_heads, head_dim, query.dtype), heads // kv_heads
        narrow, wide = find_tiles(table, *(shape.lines // group for shape in shapes))
        counts = (table[:, 8] - table[:, 7]).clamp_min(0)
        slot_at = counts.cumsum(0) - counts - table[:, 7]
        few = counts[narrow[:, 0]]
        splits = int(split_counts(few, sizes).max()) if len(few) else 0
        there = [each.to(device, non_blocking=True) for each in (table, slot_at, narrow, wide)]
        slots = torch.empty(max(int(counts.sum()), 1), dtype=torch.int32, device=device)
        most = int(counts.max()) if len(counts) else 0
        runs = None
        if most:
            runs = self._run_at.to(device, non_blocking=True), self._run_slot.to(device, non_blocking=True)
            expand(there[0], *runs, there[1], slots, most)
        long_runs = runs if has_long_runs(table, wide) else None
        prompts = plan_prompts(self._launcher.prompts, self._launcher.kind, table, wide, slot_at, slots)
        return DeviceTable(there[0], there[1], slots, there[2], there[3], splits, long_runs, prompts)


@dataclass(frozen=True, slots=True)
class _Packed:
    """Several rows' only cells, straight into the results."""

    rows: tuple[int, ...]
    tiles: Tiles

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        tiles = self.tiles
        if len(rows) < len(self.rows):
            due = set(rows)
            tiles = tiles.of([at for at, row in enumerate(self.rows) if row in due])
        tiles.attend(results.query, layer_kv, results.out, results.lse)


class _Single:
    """One cell of a row that has several. If it has all keys of its queries, it is computed straight into the results;
    if not, its result is fp32 and merges.
    """

    def __init__(self, launcher: TileLauncher, cell: Cell) -> None:
        self._cell = cell
        self._is_whole = self._is_last and cell.start <= count_below(
            cell.span.positions, launcher.kind.first_seen(cell.row.queries[cell.first])
        )
        table = CellTable([cell])
        if not self._is_whole:
            table.rows[0, 1] = 0
        self._tiles = Tiles(launcher, table.rows, table.run_at, table.run_slot)

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        cell = self._cell
        keys = cell.span.room if isinstance(cell.span, RoomSpan) else layer_kv
        if self._is_whole:
            self._tiles.attend(results.query, keys, results.out, results.lse)
            return
        out = results.query.new_empty(cell.stop - cell.first, *results.query.shape[1:], dtype=torch.float32)
        lse = out.new_empty(out.shape[:2])
        self._tiles.attend(results.query, keys, out, lse)
        results.put(cell.index, cell.first, (out, lse), self._is_last)

    @property
    def _is_last(self) -> bool:
        """Whether nothing is to come for its queries."""
        cell = self._cell
        ends = cell.end == count_below(cell.span.positions, cell.row.queries[cell.stop - 1] + 1)
        return ends and len(cell.row.keys) == 1 and not cell.row.awaited
