"""Blocks of the deterministic mode by the CPU's kernel, which reads KV where it lies and sums in one order."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dunlin.engine.attention.base import DECODE_PAIRS, AttentionKind, BatchRow, Result
from dunlin.engine.attention.blocks import BLOCK, BlockRun, one_span
from dunlin.engine.attention.native.library import COLUMNS, PagedKernel
from dunlin.engine.attention.spans import KeySpan, SlotSpan


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
        self._kernel = kernel
        self._count = len(rows)
        run_at, run_slot, begins = array("q"), array("q"), []
        for row in rows:
            begins.append(len(run_at))
            run_at.extend(one_span(row).run_at)
            run_slot.extend(one_span(row).run_slot)
        columns = array("q")
        for start in range(0, rows[0].length, BLOCK):
            for row, begin in zip(rows, begins, strict=True):
                out, stop = len(columns) // COLUMNS, min(start + BLOCK, row.length)
                runs = len(one_span(row).run_at)
                columns.extend((row.start, out, 1, row.length - 1, 1, 0, 1, start, stop, begin, runs))
        self._table = torch.frombuffer(columns, dtype=torch.int64).view(-1, COLUMNS)
        self._runs = torch.frombuffer(run_at, dtype=torch.int64), torch.frombuffer(run_slot, dtype=torch.int64)

    def compute(self, query: Tensor, layer_kv: Tensor) -> list[Result]:
        return _attend(self._kernel, query, layer_kv, self._table, self._runs, self._count)


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """KV whose key number i, from position `first` on, lies in the slots that `runs` say."""

    layer_kv: Tensor
    first: int
    runs: tuple[Tensor, Tensor]


class RunKeys:
    """See `RunBlocks`: where one span has all keys they are read there, else together from a copy."""

    def __init__(self, kernel: PagedKernel, run: BlockRun) -> None:
        self._kernel = kernel
        self._run = run
        self._whole = next((span for span in run.spans if _has_all(span, run.keys)), None)

    def read(self, layer_kv: Tensor) -> ReadKeys:
        if self._whole is None:
            keys = self._run.keys
            return ReadKeys(self._run.gather(layer_kv, max(len(keys), 1)), keys.start, _ONE_RUN)
        if isinstance(self._whole, SlotSpan):
            runs = torch.tensor(self._whole.run_at), torch.tensor(self._whole.run_slot)
            return ReadKeys(layer_kv, self._whole.positions.start, runs)
        return ReadKeys(self._whole.room, self._whole.positions.start, _ONE_RUN)

    def compute(self, kept: ReadKeys, query: Tensor, queries: range) -> list[Result]:
        columns, tokens, first = array("q"), len(queries), kept.first
        for block in range(self._run.start, self._run.stop):
            start = block * BLOCK - first
            stop = min(start + BLOCK, self._run.keys.stop - first)
            columns.extend((0, len(columns) // COLUMNS * tokens, tokens, queries.start, queries.step))
            columns.extend((first, 1, start, max(stop, start), 0, len(kept.runs[0])))
        table = torch.frombuffer(columns, dtype=torch.int64).view(-1, COLUMNS)
        return _attend(self._kernel, query, kept.layer_kv, table, kept.runs, tokens)


def _has_all(span: KeySpan, keys: range) -> bool:
    positions = span.positions
    return positions.step == 1 and positions.start <= keys.start and keys.stop <= positions.stop and len(keys) > 0


def _attend(
    kernel: PagedKernel, query: Tensor, layer_kv: Tensor, table: Tensor, runs: tuple[Tensor, Tensor], tokens: int
) -> list[Result]:
    """Results of the table's rows, `tokens` together that are of one block."""
    count = int(table[:, 2].sum())
    out = query.new_empty(count // tokens, tokens, *query.shape[1:])
    lse = out.new_empty(out.shape[:3])
    kernel.attend(query, layer_kv, table, *runs, out, lse)
    return list(zip(out, lse, strict=True))


_ONE_RUN = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
