"""The CPU backend: torch's fused attention, one call per row and cell.

A row's work is cut into cells: a block of its queries against a block of the keys of one span. The query heads of a KV
group are folded into query rows, so keys are read once per group and never copied. Cells whose keys all lie before
their queries need no mask; the square on the diagonal is plainly causal; a mask is materialised for strided positions
alone, and for one cell. Cells merge by their lse in fp32.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import DECODE_PAIRS, PIECE_PAIRS, BatchRow, PartialResult, Result
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.row_results import RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, count_below

QUERY_BLOCK = 256
KEY_BLOCK = 512

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class FusedAttention:
    """See `Attention`."""

    def plan(self, rows: Sequence[BatchRow]) -> PiecewisePlan:
        return PiecewisePlan(rows, list(cut_pieces(rows, range(len(rows)))), FusedCutter(rows))

    def share(self, held: range, length: int) -> tuple[list[range], list[range]]:
        return [held], []


class FusedCutter:
    """See `ArrivalCutter`."""

    def __init__(self, rows: Sequence[BatchRow]) -> None:
        self._rows = rows

    def check(self, row: int, part: PartialResult) -> None:
        """Any partial result merges."""

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterator[Piece]:
        """See `ArrivalCutter`."""
        if isinstance(arrived[-1], RoomSpan):
            cells = cut_cells(self._rows[row], arrived[-1], is_only=False)
            yield from _one_by_one(row, arrived[-1].positions, cells)


def cut_pieces(rows: Sequence[BatchRow], chosen: Sequence[int]) -> Iterator[Piece]:
    """The pieces of the `chosen` rows over the keys that are here. Rows of one small cell share pieces."""
    small: dict[int, Cell] = {}
    cost = 0
    for index in chosen:
        row = rows[index]
        for span in row.keys:
            cells = list(cut_cells(row, span, len(row.keys) == 1 and not row.awaited))
            if len(row.keys) > 1 or len(cells) > 1:
                yield from _one_by_one(index, span.positions, cells)
                continue
            if small and cost + cells[0].cost > PIECE_PAIRS:
                yield Piece(tuple(small), None, 0, _Together(small).compute)
                small, cost = {}, 0
            small[index] = cells[0]
            cost += cells[0].cost
    if small:
        yield Piece(tuple(small), None, 0, _Together(small).compute)


def _one_by_one(row: int, span: range, cells: Iterable["Cell"]) -> Iterator[Piece]:
    for index, cell in enumerate(cells):
        yield Piece((row,), span, index, cell.compute)


@dataclass(frozen=True, slots=True)
class _Together:
    """Several rows' only cells."""

    cells: Mapping[int, "Cell"]

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        for row in rows:
            self.cells[row].compute(results, layer_kv, [row])


@dataclass(frozen=True, slots=True)
class Cell:
    """The row's queries `[first, stop)` against keys `[start, end)` of a span. `masked`: not every query sees all.
    `is_last`: no other cell has these queries.
    """

    row: BatchRow
    span: KeySpan
    first: int
    stop: int
    start: int
    end: int
    masked: bool
    is_last: bool

    @property
    def cost(self) -> int:
        """In pairs of a row of many tokens."""
        pairs = (self.stop - self.first) * (self.end - self.start)
        return pairs * PIECE_PAIRS // DECODE_PAIRS if self.row.tokens == 1 else pairs

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        query = results.query[self.row.start + self.first : self.row.start + self.stop]
        keys_values = self.span.gather(layer_kv, self.start, self.end)
        if self.start == self.end:
            result = torch.zeros_like(query), query.new_full(query.shape[:2], float("-inf"), dtype=torch.float32)
        elif not self.masked:
            result = partial(query, keys_values)
        else:
            queries, keys = self.row.queries[self.first : self.stop], self.span.positions[self.start : self.end]
            mask = None if queries == keys else _mask(queries, keys, query.dtype)
            result = _masked(query, keys_values, mask)
        results.put(rows[0], self.first, result, self.is_last)


def cut_cells(row: BatchRow, span: KeySpan, is_only: bool) -> Iterator[Cell]:
    """A row's cells over one span; block after block of queries. `is_only`: its queries see no other keys."""
    key_block = DECODE_PAIRS if row.tokens == 1 else KEY_BLOCK
    for first in range(0, row.tokens, QUERY_BLOCK):
        queries = row.queries[first : first + QUERY_BLOCK]
        stop = first + len(queries)
        # With one query nothing is masked; else the diagonal begins with the first query's own position.
        seen = count_below(span.positions, queries[0] + (len(queries) == 1))
        end = count_below(span.positions, queries[-1] + 1)
        blocks = [(start, min(start + key_block, seen), False) for start in range(0, seen, key_block)]
        blocks += [(start, min(start + QUERY_BLOCK, end), True) for start in range(seen, end, QUERY_BLOCK)]
        # Queries that see no key of the only span still have a result.
        for start, block_end, masked in blocks or [(0, 0, False)]:
            yield Cell(row, span, first, stop, start, block_end, masked, is_only and block_end == end)


def partial(query: Tensor, keys_values: Tensor) -> Result:
    """Attention of every query over every given key, without a mask: the part for a stretch of a sequence's tokens."""
    tokens, heads, head_dim = query.shape
    kv_heads = keys_values.shape[2]
    keys, values = keys_values.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    if tokens == 1:
        out, lse = _flash(query.view(1, kv_heads, heads // kv_heads, head_dim), keys, values)
        return out.reshape(1, heads, head_dim), lse.reshape(1, heads)
    folded = (
        query.view(tokens, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head_dim)
    )
    out, lse = _flash(folded, keys, values)
    out = out.reshape(kv_heads, -1, tokens, head_dim).permute(2, 0, 1, 3).reshape(tokens, heads, head_dim)
    return out, lse.reshape(heads, tokens).t()


def _masked(query: Tensor, keys_values: Tensor, mask: Tensor | None) -> Result:
    """Attention where the queries are at the keys' positions, or see what `mask` allows them."""
    heads, kv_heads = query.shape[1], keys_values.shape[2]
    spread = keys_values.repeat_interleave(heads // kv_heads, dim=2) if heads != kv_heads else keys_values
    keys, values = spread.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    packed = query.transpose(0, 1)[None]
    if mask is None:
        out, lse = _flash(packed, keys, values, is_causal=True)
        return out[0].transpose(0, 1), lse[0].t()
    out, lse = _flash(packed, keys, values, attn_mask=mask)
    blind = mask.amax(dim=1) < 0  # torch has no number for a query that sees no key
    out = out[0].transpose(0, 1).masked_fill(blind[:, None, None], 0.0)
    return out, lse[0].t().masked_fill(blind[:, None], float("-inf"))


def _mask(queries: range, keys: range, dtype: torch.dtype) -> Tensor:
    """What is added to scores, `[queries, keys]`: -inf where the key is after the query."""
    later = torch.tensor(keys)[None] > torch.tensor(queries)[:, None]
    return torch.zeros(later.shape, dtype=dtype).masked_fill(later, float("-inf"))
