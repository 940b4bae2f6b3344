"""Blocks of the deterministic mode by the CPU's kernel, which reads KV where it lies and sums in one order."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor

from dunlin.engine.attention.base import DECODE_PAIRS, AttentionKind, BatchRow, Result
from dunlin.engine.attention.blocks import BLOCK, BlockRun, one_span
from dunlin.engine.attention.native.library import PagedKernel
from dunlin.engine.attention.paged import OUT, TOKENS, Cell, CellTable
from dunlin.engine.attention.spans import KeySpan, SlotSpan, slot_run


class KernelBlocks:
    """See `Blocks`."""

    shared_keys = DECODE_PAIRS

    def __init__(self, kernel: PagedKernel) -> None:
        self._kernel = replace(kernel, is_fixed=True)

    def of(self, kind: AttentionKind) -> "KernelBlocks":
        return KernelBlocks(self._kernel.of(kind))

    def width(self, length: int) -> int:
        return -(-length // BLOCK) * BLOCK

    def short(self, rows: Sequence[BatchRow]) -> "ShortRows":
        return ShortRows(self._kernel, rows)

    def long(self, run: BlockRun) -> "RunKeys":
        return RunKeys(self._kernel, run)


class ShortRows:
    """See `ShortBlocks`: all blocks of all rows in one call."""

    def __init__(self, kernel: PagedKernel, rows: Sequence[BatchRow]) -> None:
        starts = range(0, rows[0].length, BLOCK)
        self._kernel = kernel
        self._table = _table(
            Cell(at, row, one_span(row), 0, 1, start, min(start + BLOCK, row.length))
            for start in starts
            for at, row in enumerate(rows)
        )
        self._shape = len(starts), len(rows)

    def compute(self, query: Tensor, layer_kv: Tensor) -> list[Result]:
        return _attend(self._kernel, query, layer_kv, self._table, self._shape)


class RunKeys:
    """See `RunBlocks`: where one span has all keys they are read there, else together from a copy."""

    def __init__(self, kernel: PagedKernel, run: BlockRun) -> None:
        self._kernel = kernel
        self._run = run
        self._whole = next((span for span in run.spans if _has_all(span, run.keys)), None)
        self._tables: dict[range, CellTable] = {}  # by positions of queries: the same in all layers

    def read(self, layer_kv: Tensor) -> Tensor:
        """The KV in whose slots the keys lie."""
        if self._whole is None:
            return self._run.gather(layer_kv, max(len(self._run.keys), 1))
        return layer_kv if isinstance(self._whole, SlotSpan) else self._whole.room

    def compute(self, kept: Tensor, query: Tensor, queries: range) -> list[Result]:
        if queries not in self._tables:
            self._tables[queries] = self._cut(queries)
        shape = self._run.stop - self._run.start, len(queries)
        return _attend(self._kernel, query, kept, self._tables[queries], shape)

    def _cut(self, queries: range) -> CellTable:
        keys, whole = self._run.keys, self._whole
        span = whole if isinstance(whole, SlotSpan) else slot_run(keys if whole is None else whole.positions, 0)
        row, first, end = BatchRow(0, len(queries), queries, (span,)), span.positions.start, keys.stop
        starts = range(self._run.start * BLOCK, self._run.stop * BLOCK, BLOCK)
        return _table(
            Cell(0, row, span, 0, len(queries), start - first, max(min(start + BLOCK, end), start) - first)
            for start in starts
        )


def _has_all(span: KeySpan, keys: range) -> bool:
    positions = span.positions
    return positions.step == 1 and positions.start <= keys.start and keys.stop <= positions.stop and len(keys) > 0


def _table(cells: Iterable[Cell]) -> CellTable:
    """The cells, with their results one after another."""
    table = CellTable([*cells])
    tokens = table.rows[:, TOKENS]
    table.rows[:, OUT] = tokens.cumsum(0) - tokens
    return table


def _attend(
    kernel: PagedKernel, query: Tensor, layer_kv: Tensor, table: CellTable, shape: tuple[int, int]
) -> list[Result]:
    """Results by block; `shape`: blocks, and tokens of each."""
    out = query.new_empty(*shape, *query.shape[1:])
    lse = out.new_empty(out.shape[:3])
    kernel.attend(query, layer_kv, table.rows, table.run_at, table.run_slot, out, lse)
    return list(zip(out, lse, strict=True))
