"""Attention whose bits depend on a sequence's tokens alone: not on batch, chunk borders or extents. fp32.

Queries go in tiles of `tile` folded rows, keys in blocks of `BLOCK` tokens at absolute positions, so that every product
has one fixed shape. The maximum is exact in any order. Sums over blocks run along a binary tree whose leaves are a
power of two, and a tree over more blocks, all masked, adds exact zeros to the same partial sums; so short rows may
share a call at the same width.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import AttendLayer, BatchRow, Safepoint

TILE_LEAST = 16
BLOCK = 64
# Keys that one call may gather for rows that share it: bounds memory and the work between safepoints.
SHARED_KEYS = 1 << 11

Result = tuple[Tensor, Tensor]
Piece = Callable[[Tensor, Tensor, Tensor, Tensor, Safepoint], None]


def plan(rows: Sequence[BatchRow]) -> AttendLayer:
    """See `Attention`."""
    pieces: list[Piece] = [_Shared(group).attend for group in _groups(rows)]
    pieces += [_Long(row).attend for row in rows if row.tokens > 1]

    def attend(query: Tensor, layer_kv: Tensor, safepoint: Safepoint) -> Result:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        lse = query.new_empty(query.shape[:2])
        for piece in pieces:
            piece(query, layer_kv, out, lse, safepoint)
        return out, lse

    return attend


def _groups(rows: Sequence[BatchRow]) -> list[list[BatchRow]]:
    """Rows of one token, together where they need the same number of leaves."""
    groups: dict[int, list[list[BatchRow]]] = defaultdict(list)
    for row in rows:
        if row.tokens == 1:
            width = _leaves(row.kv_location.length) * BLOCK
            if not groups[width] or (len(groups[width][-1]) + 1) * width > SHARED_KEYS:
                groups[width].append([])
            groups[width][-1].append(row)
    return [group for width in sorted(groups) for group in groups[width]]


def _tile_rows(group: int) -> int:
    """Rows of a tile: a property of the model, so that all its tiles are alike."""
    return -(-group // TILE_LEAST) * TILE_LEAST


def _leaves(length: int) -> int:
    """Blocks for `length` keys, rounded up to a power of two."""
    return 1 << (-(-length // BLOCK) - 1).bit_length()


class _Shared:
    """Rows of one token each: one tile per row, all tiles in one call."""

    def __init__(self, rows: Sequence[BatchRow]) -> None:
        width = _leaves(rows[0].kv_location.length) * BLOCK
        # A row's padding repeats its own last slot: masked, and always finite.
        slots = [
            F.pad(row.kv_location.index()[None], (0, width - row.kv_location.length), mode="replicate")[0]
            for row in rows
        ]
        self._slots = torch.cat(slots)
        self._at = torch.tensor([row.start for row in rows])
        self._positions = torch.tensor([row.kv_location.length - 1 for row in rows])

    def attend(self, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor, safepoint: Safepoint) -> None:
        count, (heads, head_dim), kv_heads = len(self._at), query.shape[1:], layer_kv.shape[2]
        group = heads // kv_heads
        folded = query[self._at].view(count, kv_heads, group, head_dim)
        keys, values = _blocks(layer_kv.index_select(0, self._slots).view(count, -1, *layer_kv.shape[1:]))
        tile = F.pad(folded, (0, 0, 0, _tile_rows(group) - group))
        mixed, sums = _tiles(tile, self._positions[:, None].expand(-1, tile.shape[2]), keys, values)
        out[self._at] = mixed[:, :, :group].reshape(count, heads, head_dim)
        lse[self._at] = sums[:, :, :group].reshape(count, heads)
        safepoint()


class _Long:
    """A row of many tokens: its tiles one after another over the same keys."""

    def __init__(self, row: BatchRow) -> None:
        self._row = row

    def attend(self, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor, safepoint: Safepoint) -> None:
        row, (heads, head_dim), kv_heads = self._row, query.shape[1:], layer_kv.shape[2]
        group = heads // kv_heads
        per_tile = _tile_rows(group) // group
        own = row.kv_location.gather(layer_kv, 0, row.kv_location.length)
        padded = F.pad(own, (0, 0, 0, 0, 0, 0, 0, _leaves(row.kv_location.length) * BLOCK - row.kv_location.length))
        keys, values = _blocks(padded[None])
        for start in range(row.start, row.stop, per_tile):
            stop = min(start + per_tile, row.stop)
            first = row.context_tokens + start - row.start
            tile, positions = _fold(query[start:stop], kv_heads, first)
            leaves = _leaves(first + stop - start)
            mixed, sums = _tiles(tile, positions, keys[:, :leaves], values[:, :leaves])
            out[start:stop] = _unfold(mixed[0], stop - start, group).reshape(-1, heads, head_dim)
            lse[start:stop] = _unfold(sums[0, :, :, None], stop - start, group).reshape(-1, heads)
            safepoint()


def _fold(query: Tensor, kv_heads: int, first: int) -> tuple[Tensor, Tensor]:
    """Query `[tokens, heads, head_dim]` as one padded tile `[1, kv_heads, tile, head_dim]`, positions `[1, tile]`."""
    tokens, heads, head_dim = query.shape
    group = heads // kv_heads
    folded = query.reshape(tokens, kv_heads, group, head_dim).transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    positions = torch.arange(first, first + tokens).repeat_interleave(group)[None]
    missing = _tile_rows(group) - tokens * group
    return F.pad(folded, (0, 0, 0, missing)), F.pad(positions, (0, missing))


def _unfold(tile: Tensor, tokens: int, group: int) -> Tensor:
    """From `[kv_heads, tile, items]` to `[tokens, kv_heads, group, items]`."""
    return tile[:, : tokens * group].reshape(tile.shape[0], tokens, group, -1).transpose(0, 1)


def _blocks(keys_values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values out of `[n, keys, 2, kv_heads, head_dim]`, each `[n, blocks, kv_heads, BLOCK, head_dim]`."""
    count, _, _, kv_heads, head_dim = keys_values.shape
    blocks = keys_values.view(count, -1, BLOCK, 2, kv_heads, head_dim).permute(3, 0, 1, 4, 2, 5).contiguous()
    return blocks[0], blocks[1]


def _tiles(query: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Result:
    """Query `[n, kv_heads, tile, head_dim]` at `[n, tile]` positions: out like the query, lse `[n, kv_heads, tile]`."""
    count, kv_heads, tile, head_dim = query.shape
    leaves = keys.shape[1]
    spread = query[:, None].expand(-1, leaves, -1, -1, -1).reshape(-1, tile, head_dim)
    shape = (count, leaves, kv_heads, tile)
    scores = torch.bmm(spread, keys.reshape(-1, BLOCK, head_dim).transpose(1, 2)).view(*shape, BLOCK) * head_dim**-0.5
    key_positions = torch.arange(leaves * BLOCK).view(1, leaves, 1, 1, BLOCK)
    scores.masked_fill_(key_positions > positions.view(count, 1, 1, tile, 1), float("-inf"))
    highest = scores.amax(dim=(1, 4))
    shares = scores.sub_(highest[:, None, :, :, None]).exp_()
    parts = torch.bmm(shares.view(-1, tile, BLOCK), values.reshape(-1, BLOCK, head_dim)).view(*shape, head_dim)
    total = _tree_sum(shares.sum(dim=-1))
    return _tree_sum(parts) / total.unsqueeze(-1), total.log() + highest


def _tree_sum(parts: Tensor) -> Tensor:
    """Sum over the second axis, a power of two long, along a binary tree."""
    while parts.shape[1] > 1:
        parts = parts[:, 0::2] + parts[:, 1::2]
    return parts[:, 0]
