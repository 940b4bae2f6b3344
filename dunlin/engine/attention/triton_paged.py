"""The GPU backend that always works: a Triton kernel that reads KV where it lies, whatever runs of slots that are.

All short rows of a batch are one piece: prompts in tiles of many lines, decode rows in tiles of few whose keys are
split over programs and merged. Longer rows are cut into blocks of queries, and of keys where a piece would get too
long; their results merge in fp32. How a row is cut depends on the row alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from dunlin.engine.attention import triton_kernels as kernels
from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, LocalRows, PartialResult
from dunlin.engine.attention.hopper import has_tensor_memory, launch_options
from dunlin.engine.attention.paged import Cell, CellTable, DecodeRuns
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.row_results import RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, count_below

PIECE_PAIRS = 1 << 25
"""(query, key) pairs of one piece: about 1.5 ms for 32 heads of 128 at 400 TFLOP/s."""
QUERY_BLOCK = 1024
"""Queries of a piece of a long row."""
SHAPED_DIM = 128
"""Numbers of a head that tiles are made for, and of smaller ones."""
LONG_RUN = 512
"""Keys of a run of slots, at least on average, whose blocks are copied as such."""
LEAST_QUERIES = 32
"""Reading a key costs as much as this many queries' arithmetic on it."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Lines of a tile (queries times query heads of one KV head), keys that a program reads at a time, its warps, and
    blocks of keys that are on their way at once.
    """

    lines: int
    keys: int
    warps: int
    stages: int

    def fitted(self, lines: int, head_dim: int) -> "TileShape":
        """The same with no fewer lines; of wide heads it reads fewer keys at a time, for shared memory holds them."""
        keys = max(self.keys * SHAPED_DIM // max(head_dim, SHAPED_DIM), 16)
        return replace(self, lines=max(self.lines, lines), keys=keys)


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Tiles of prompts, in fp32 of fewer lines (products of that type leave the tensor cores, and more would not fit
    the registers), and of rows of few queries; keys of a split of a narrow row, about, and its splits at most. On other
    GPUs `python -m benchmarks.gpu.tune` finds what suits.
    """

    wide: TileShape = TileShape(128, 128, 8, 3)
    wide_fp32: TileShape = TileShape(32, 32, 4, 2)
    narrow: TileShape = TileShape(16, 128, 4, 2)
    split_keys: int = 512
    most_splits: int = 64

    def shapes(self, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[TileShape, TileShape]:
        """(narrow, wide) tiles: their lines are a power of two that all query heads of a KV head fit into."""
        group = int(triton.next_power_of_2(heads // kv_heads))
        wide, block = self.wide_fp32 if dtype is torch.float32 else self.wide, _block_dim(head_dim)
        return self.narrow.fitted(group, block), wide.fitted(group, block)


SIZES = TileSizes()
IS_INTERPRETED: bool = triton.knobs.runtime.interpret


class TritonAttention:
    """See `Attention`. `sizes`: of the kernels' tiles."""

    def __init__(self, sizes: TileSizes = SIZES) -> None:
        self._sizes = sizes
        self._decode_runs: DecodeRuns | None = None

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
        """See `Attention`."""
        launcher = TileLauncher(kind, self._sizes)
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

    def _decode_pieces(self, launcher: "TileLauncher", rows: LocalRows, chosen: Sequence[int]) -> Iterator[Piece]:
        if self._decode_runs is None or not self._decode_runs.fit(rows, chosen):
            self._decode_runs = DecodeRuns(rows, chosen)
        runs = self._decode_runs
        table = runs.table(rows, chosen, launcher.kind.window)
        yield Piece(
            tuple(chosen), None, 0, _Packed(tuple(chosen), Tiles(launcher, table, runs.run_at, runs.run_slot)).compute
        )


class TritonCutter:
    """See `ArrivalCutter`."""

    def __init__(self, launcher: "TileLauncher", rows: Sequence[BatchRow]) -> None:
        self._launcher = launcher
        self._rows = rows

    def check(self, row: int, part: PartialResult) -> None:
        """Any partial result merges."""

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterator[Piece]:
        """See `ArrivalCutter`."""
        if isinstance(arrived[-1], RoomSpan):
            yield from _pieces_of_span(self._launcher, row, self._rows[row], arrived[-1])


def _cut(launcher: "TileLauncher", rows: Sequence[BatchRow], chosen: Iterable[int]) -> Iterator[Piece]:
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


def _together(launcher: "TileLauncher", cells: Sequence[Cell]) -> Piece:
    rows, table = tuple(cell.index for cell in cells), CellTable(cells)
    tiles = Tiles(launcher, table.rows, table.run_at, table.run_slot)
    return Piece(rows, None, 0, _Packed(rows, tiles).compute)


def _pieces_of_span(launcher: "TileLauncher", index: int, row: BatchRow, span: KeySpan) -> Iterator[Piece]:
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


@dataclass(frozen=True, slots=True)
class TileLauncher:
    """Launches the kernels for layers of one kind."""

    kind: AttentionKind
    sizes: TileSizes


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """What the kernels read of some cells, where they read it. `narrow` and `wide`: tiles; `splits`: of the narrow ones
    at most. `runs`: of slots (where each begins, its first slot), if those of the wide tiles' rows are long.
    """

    table: Tensor
    slot_at: Tensor
    slots: Tensor
    narrow: Tensor
    wide: Tensor
    splits: int
    runs: tuple[Tensor, Tensor] | None = None


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
        if query.dtype is not layer_kv.dtype:
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
        splits = max((split_count(count, sizes) for count in few.tolist()), default=0)
        there = [each.to(device, non_blocking=True) for each in (table, slot_at, narrow, wide)]
        slots = torch.empty(max(int(counts.sum()), 1), dtype=torch.int32, device=device)
        most = int(counts.max()) if len(counts) else 0
        runs = None
        if most:
            runs = self._run_at.to(device, non_blocking=True), self._run_slot.to(device, non_blocking=True)
            expand(there[0], *runs, there[1], slots, most)
        long_runs = runs if has_long_runs(table, wide) else None
        return DeviceTable(there[0], there[1], slots, there[2], there[3], splits, long_runs)


def expand(table: Tensor, run_at: Tensor, run_slot: Tensor, slot_at: Tensor, slots: Tensor, most: int) -> None:
    """Write the slots of all rows' keys, of which a row has at most `most`."""
    block = 1024
    grid = (len(table), triton.cdiv(most, block))
    kernels.expand_slots[grid](table, run_at, run_slot, slot_at, slots, BLOCK=block)


def has_long_runs(table: Tensor, wide: Tensor) -> bool:
    """Whether the keys of the rows of wide tiles lie in runs of slots that the tensor memory accelerator pays for."""
    rows = wide[wide[:, 1] == 0, 0]
    return len(rows) > 0 and int(table[rows, 8].sum()) >= LONG_RUN * int(table[rows, 10].sum())


def split_length(keys: int, sizes: TileSizes = SIZES) -> int:
    """Keys of one of the programs that share a narrow row's: `split_keys` of the kernels. About `sizes.split_keys`, so
    that no program has but a few: that costs as much as a full one.
    """
    splits = min(max((keys + sizes.split_keys // 2) // sizes.split_keys, 1), sizes.most_splits)
    return max(-(-keys // (splits * sizes.narrow.keys)), 1) * sizes.narrow.keys


def split_count(keys: int, sizes: TileSizes = SIZES) -> int:
    """Programs that share a narrow row's keys."""
    return -(-keys // split_length(keys, sizes))


def find_tiles(table: Tensor, narrow_queries: int, wide_queries: int) -> tuple[Tensor, Tensor]:
    """(narrow, wide) tiles `[tiles, 2]`: row, first query. A row of no more queries than a narrow tile's is one."""
    tokens = table[:, 2]
    is_narrow = tokens <= narrow_queries
    found = is_narrow.nonzero()[:, 0]
    narrow = torch.stack((found, torch.zeros_like(found)), 1)
    rows = (~is_narrow).nonzero()[:, 0]
    counts = -(-tokens[rows] // wide_queries)
    starts = counts.cumsum(0) - counts
    inside = torch.arange(int(counts.sum())) - starts.repeat_interleave(counts)
    return narrow, torch.stack((rows.repeat_interleave(counts), inside * wide_queries), 1)


def launch(
    launcher: TileLauncher, there: DeviceTable, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Compute the tiles: the narrow ones in splits where a row has several."""
    sizes = launcher.sizes
    heads, head_dim = query.shape[1:]
    narrow, wide = sizes.shapes(heads, layer_kv.shape[2], head_dim, query.dtype)
    if len(there.wide):
        is_by_run = there.runs is not None and _can_go_by_run(launcher.kind, query)
        _attend(there, there.wide, query, layer_kv, out, lse, launcher, wide, is_by_run=is_by_run)
    if not len(there.narrow):
        return
    if there.splits <= 1:
        _attend(there, there.narrow, query, layer_kv, out, lse, launcher, narrow)
        return
    queries = narrow.lines // (heads // layer_kv.shape[2])
    # Splits of few decode rows beside a long prompt need no places for the prompt.
    places = min(len(out), len(there.narrow) * queries)
    part_out = query.new_empty((there.splits, places, *out.shape[1:]), dtype=torch.float32)
    part_lse = part_out.new_empty(part_out.shape[:3])
    is_by_tile = places < len(out)
    _attend(there, there.narrow, query, layer_kv, part_out, part_lse, launcher, narrow, there.splits, is_by_tile)
    kernels.merge_splits[(len(there.narrow), queries, heads)](
        part_out, part_lse, there.table, there.narrow, out, lse, part_out.stride(0), part_lse.stride(0),
        HEADS=heads, HEAD_DIM=head_dim, BLOCK_DIM=_block_dim(head_dim), QUERIES=queries,
        SPLIT_KEYS=sizes.split_keys, SPLIT_STEP=sizes.narrow.keys, MOST_SPLITS=sizes.most_splits,
        IS_BY_TILE=is_by_tile, num_warps=1, **launch_options(),
    )  # fmt: skip


def _attend(
    there: DeviceTable, tiles: Tensor, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor,
    launcher: TileLauncher, shape: TileShape, splits: int = 1, is_by_tile: bool = False, is_by_run: bool = False,
) -> None:  # fmt: skip
    heads, head_dim = query.shape[1:]
    kv_heads = layer_kv.shape[2]
    kind, sizes, is_split = launcher.kind, launcher.sizes, splits > 1
    is_by_head = tiles is there.narrow
    grid = (kv_heads, len(tiles)) if is_by_head else (len(tiles), kv_heads)
    described, run_at, run_slot = layer_kv, there.slots, there.slots
    if is_by_run and there.runs is not None:
        described, (run_at, run_slot) = _described(layer_kv, shape.keys), there.runs
    kernels.attend_tiles[(*grid, splits)](
        query, layer_kv, described, there.table, there.slot_at, there.slots, run_at, run_slot, tiles, out, lse,
        query.stride(0), layer_kv.stride(0), out.stride(0) if is_split else 0, lse.stride(0) if is_split else 0,
        kind.scale_of(head_dim), kind.cap, kind.window,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_DIM=_block_dim(head_dim), LINES=shape.lines,
        BLOCK_KEYS=shape.keys, SPLIT_KEYS=sizes.split_keys, SPLIT_STEP=sizes.narrow.keys,
        MOST_SPLITS=sizes.most_splits if is_split else 1, IS_BY_TILE=is_by_tile, IS_BY_RUN=is_by_run,
        IS_CAPPED=bool(kind.cap), IS_WINDOWED=bool(kind.window),
        IS_WIDENED=IS_INTERPRETED and query.dtype is torch.bfloat16, IS_BY_HEAD=is_by_head,
        num_warps=shape.warps, num_stages=shape.stages, **launch_options(),
    )  # fmt: skip


def _can_go_by_run(kind: AttentionKind, query: Tensor) -> bool:
    """Whether the tensor memory accelerator can copy blocks of keys, which all queries of a tile see."""
    head_dim = query.shape[2]
    is_block = head_dim == _block_dim(head_dim) and head_dim <= SHAPED_DIM  # shared memory holds no wider ones
    return has_tensor_memory() and not kind.window and query.element_size() == 2 and is_block


def _described(layer_kv: Tensor, keys: int) -> TensorDescriptor:
    """A layer's KV in blocks of so many keys, or values, of one head."""
    slots, _, kv_heads, head_dim = layer_kv.shape
    shape = [slots, 2 * kv_heads * head_dim]
    return TensorDescriptor(layer_kv, shape, [layer_kv.stride(0), 1], [keys, head_dim])


def _block_dim(head_dim: int) -> int:
    """A product on the tensor cores has 16 terms at least."""
    return max(int(triton.next_power_of_2(head_dim)), 16)


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
