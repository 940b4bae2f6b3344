"""The CPU backend: torch's fused attention, one call per row and cell.

A row's work is cut into cells: a block of its queries against a block of the keys of one span. The query heads of a KV
group are folded into query rows, so keys are read once per group and never copied. Cells whose keys all lie before
their queries need no mask; the square on the diagonal is plainly causal; a mask is materialised for strided positions
and at the edge of a window alone, and for one cell. Cells merge by their lse in fp32. Capped scores are written out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import (
    DECODE_PAIRS,
    PIECE_PAIRS,
    PLAIN,
    AttentionKind,
    BatchRow,
    PartialResult,
    Result,
)
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.row_results import RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, count_below

QUERY_BLOCK = 256
KEY_BLOCK = 512

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class FusedAttention:
    """See `Attention`."""

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
        return PiecewisePlan(rows, list(cut_pieces(rows, range(len(rows)), kind)), FusedCutter(rows, kind))

    def share(self, held: Sequence[range], length: int) -> tuple[list[tuple[range, ...]], list[range]]:
        """One result over all of it: each query is answered once."""
        return [tuple(held)], []


class FusedCutter:
    """See `ArrivalCutter`."""

    def __init__(self, rows: Sequence[BatchRow], kind: AttentionKind) -> None:
        self._rows = rows
        self._kind = kind

    def check(self, row: int, part: PartialResult) -> None:
        """Any partial result merges."""

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterator[Piece]:
        """See `ArrivalCutter`."""
        if isinstance(arrived[-1], RoomSpan):
            cells = cut_cells(self._rows[row], arrived[-1], False, self._kind)
            yield from _one_by_one(row, arrived[-1].positions, cells)


def cut_pieces(rows: Sequence[BatchRow], chosen: Sequence[int], kind: AttentionKind) -> Iterator[Piece]:
    """The pieces of the `chosen` rows over the keys that are here. Rows of one small cell share pieces."""
    small: dict[int, FusedCell] = {}
    cost = 0
    for index in chosen:
        row = rows[index]
        for span in row.keys:
            cells = list(cut_cells(row, span, len(row.keys) == 1 and not row.awaited, kind))
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


def _one_by_one(row: int, span: range, cells: Iterable["FusedCell"]) -> Iterator[Piece]:
    for index, cell in enumerate(cells):
        yield Piece((row,), span, index, cell.compute)


@dataclass(frozen=True, slots=True)
class _Together:
    """Several rows' only cells."""

    cells: Mapping[int, "FusedCell"]

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        for row in rows:
            self.cells[row].compute(results, layer_kv, [row])


@dataclass(frozen=True, slots=True)
class FusedCell:
    """The row's queries `[first, stop)` against keys `[start, end)` of a span. `masked`: not every query sees all.
    `is_last`: no other cell has these queries.
    """

    row: BatchRow
    span: KeySpan
    kind: AttentionKind
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
        keys_values = self.span.gather(layer_kv, self.start, self.end).to(query.dtype)
        if self.start == self.end:
            result = torch.zeros_like(query), query.new_full(query.shape[:2], float("-inf"), dtype=torch.float32)
        elif self.kind.cap:
            result = _capped(query, keys_values, self._mask(torch.float32) if self.masked else None, self.kind)
        elif not self.masked:
            result = partial(query, keys_values, self._scale)
        else:
            mask = None if self._is_diagonal else self._mask(query.dtype)
            result = _masked(query, keys_values, mask, self._scale)
        results.put(rows[0], self.first, result, self.is_last)

    @property
    def _places(self) -> tuple[range, range]:
        return self.row.queries[self.first : self.stop], self.span.positions[self.start : self.end]

    @property
    def _is_diagonal(self) -> bool:
        """Whether it is plainly causal."""
        queries, keys = self._places
        return queries == keys and self.kind.sees_all(queries, keys)

    @property
    def _scale(self) -> float | None:
        return self.kind.scale or None

    def _mask(self, dtype: torch.dtype) -> Tensor:
        """What is added to scores, `[queries, keys]`: -inf where the query does not see the key."""
        queries, keys = (torch.tensor(each) for each in self._places)
        unseen = keys[None] > queries[:, None]
        if self.kind.window:
            unseen |= keys[None] <= queries[:, None] - self.kind.window
        return torch.zeros(unseen.shape, dtype=dtype).masked_fill(unseen, float("-inf"))


def cut_cells(row: BatchRow, span: KeySpan, is_only: bool, kind: AttentionKind = PLAIN) -> Iterator[FusedCell]:
    """A row's cells over one span; block after block of queries. `is_only`: its queries see no other keys."""
    key_block = DECODE_PAIRS if row.tokens == 1 else KEY_BLOCK
    for first in range(0, row.tokens, QUERY_BLOCK):
        queries = row.queries[first : first + QUERY_BLOCK]
        stop = first + len(queries)
        # With one query nothing is masked; else the diagonal begins with the first query's own position.
        seen = count_below(span.positions, queries[0] + (len(queries) == 1))
        end = count_below(span.positions, queries[-1] + 1)
        # The first key that any of the queries sees, and the first that the window hides from none.
        low = count_below(span.positions, kind.first_seen(queries[0]))
        edge = min(count_below(span.positions, kind.first_seen(queries[-1])), seen)
        blocks = [
            *_blocks(low, edge, QUERY_BLOCK, True),
            *_blocks(edge, seen, key_block, False),
            *_blocks(seen, end, QUERY_BLOCK, True),
        ]
        # Queries that see no key of the only span still have a result.
        for start, block_end, masked in blocks or [(end, end, False)]:
            yield FusedCell(row, span, kind, first, stop, start, block_end, masked, is_only and block_end == end)


def _blocks(start: int, stop: int, size: int, masked: bool) -> list[tuple[int, int, bool]]:
    return [(at, min(at + size, stop), masked) for at in range(start, stop, size)]


def partial(query: Tensor, keys_values: Tensor, scale: float | None = None) -> Result:
    """Attention of every query over every given key, without a mask: the part for a stretch of a sequence's tokens."""
    tokens, heads, head_dim = query.shape
    kv_heads = keys_values.shape[2]
    keys, values = keys_values.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    if tokens == 1:
        out, lse = _flash(query.view(1, kv_heads, heads // kv_heads, head_dim), keys, values, scale=scale)
        return out.reshape(1, heads, head_dim), lse.reshape(1, heads)
    folded = (
        query.view(tokens, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head_dim)
    )
    out, lse = _flash(folded, keys, values, scale=scale)
    out = out.reshape(kv_heads, -1, tokens, head_dim).permute(2, 0, 1, 3).reshape(tokens, heads, head_dim)
    return out, lse.reshape(heads, tokens).t()


def _masked(query: Tensor, keys_values: Tensor, mask: Tensor | None, scale: float | None) -> Result:
    """Attention where the queries are at the keys' positions, or see what `mask` allows them."""
    heads, kv_heads = query.shape[1], keys_values.shape[2]
    spread = keys_values.repeat_interleave(heads // kv_heads, dim=2) if heads != kv_heads else keys_values
    keys, values = spread.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    packed = query.transpose(0, 1)[None]
    if mask is None:
        out, lse = _flash(packed, keys, values, is_causal=True, scale=scale)
        return out[0].transpose(0, 1), lse[0].t()
    out, lse = _flash(packed, keys, values, attn_mask=mask, scale=scale)
    blind = mask.amax(dim=1) < 0  # torch has no number for a query that sees no key
    out = out[0].transpose(0, 1).masked_fill(blind[:, None, None], 0.0)
    return out, lse[0].t().masked_fill(blind[:, None], float("-inf"))


def _capped(query: Tensor, keys_values: Tensor, mask: Tensor | None, kind: AttentionKind) -> Result:
    """The same with a cap, which torch's kernel lacks: scores in fp32, written out."""
    heads, kv_heads = query.shape[1], keys_values.shape[2]
    keys, values = keys_values.float().repeat_interleave(heads // kv_heads, dim=2).permute(1, 2, 0, 3).unbind(0)
    scores = torch.matmul(query.float().transpose(0, 1), keys.transpose(1, 2)) * kind.scale_of(query.shape[2])
    scores = kind.cap * (scores / kind.cap).tanh()
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(dim=-1)
    shares = (scores - lse.clamp_min(_LOWEST)[..., None]).exp()  # no key is seen: exp(-inf), not a number that is none
    return torch.matmul(shares, values).transpose(0, 1).to(query.dtype), lse.t()


_LOWEST = torch.finfo(torch.float32).min
