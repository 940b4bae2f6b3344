"""Blocks of the deterministic mode by torch: every product has one fixed shape.

Queries go in tiles of as many folded rows as the model's heads make, keys in leaves of `LEAF` tokens. Sums run along a
binary tree whose leaves are a power of two; a tree over more leaves, all masked, adds exact zeros to the same partial
sums, so short rows may share a call at the same width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, Result
from dunlin.engine.attention.blocks import BLOCK, BlockRun, one_span

TILE_LEAST = 16
LEAF = 64
BLOCK_LEAVES = BLOCK // LEAF
# Keys that one call may gather for rows that share it.
SHARED_KEYS = 1 << 11


class TileBlocks:
    """See `Blocks`."""

    shared_keys = SHARED_KEYS

    def __init__(self, kind: AttentionKind = PLAIN) -> None:
        self._kind = kind

    def of(self, kind: AttentionKind) -> "TileBlocks":
        return TileBlocks(kind)

    def width(self, length: int) -> int:
        return _leaves(length) * LEAF

    def short(self, rows: Sequence[BatchRow]) -> "ShortTiles":
        return ShortTiles(rows, self._kind, self.width(rows[0].length))

    def long(self, run: BlockRun) -> "RunTiles":
        return RunTiles(run, self._kind)


class ShortTiles:
    """See `ShortBlocks`: one tile per row, all tiles in one call."""

    def __init__(self, rows: Sequence[BatchRow], kind: AttentionKind, width: int) -> None:
        self._kind = kind
        # A row's padding repeats its own last slot: masked, and always finite.
        slots = [F.pad(one_span(row).slots()[None], (0, width - row.length), mode="replicate") for row in rows]
        self._slots = torch.cat(slots)
        self._at = torch.tensor([row.start for row in rows])
        self._positions = torch.tensor([row.length - 1 for row in rows])

    def compute(self, query: Tensor, layer_kv: Tensor) -> list[Result]:
        count, (heads, head_dim), kv_heads = len(self._at), query.shape[1:], layer_kv.shape[2]
        group = heads // kv_heads
        folded = query[self._at].view(count, kv_heads, group, head_dim)
        keys, values = _cut_leaves(layer_kv.index_select(0, self._slots.view(-1)).view(count, -1, *layer_kv.shape[1:]))
        tile = F.pad(folded, (0, 0, 0, _tile_rows(group) - group))
        positions = self._positions[:, None].expand(-1, tile.shape[2])
        return [
            (mixed[:, :, :group].reshape(count, heads, head_dim), sums[:, :, :group].reshape(count, heads))
            for mixed, sums in _tiles(tile, positions, keys, values, 0, self._kind)
        ]


class RunTiles:
    """See `RunBlocks`: tile after tile over the same run of keys."""

    def __init__(self, run: BlockRun, kind: AttentionKind) -> None:
        self._run = run
        self._kind = kind

    def read(self, layer_kv: Tensor) -> Result:
        return _cut_leaves(self._run.gather(layer_kv, self._leaves * LEAF)[None])

    def compute(self, kept: Result, query: Tensor, queries: range) -> list[Result]:
        keys, values = kept
        run = self._run
        seen = min(max(queries[-1] + 1 - run.start * BLOCK, 1), (run.stop - run.start) * BLOCK)
        leaves = min(_leaves(seen), self._leaves) if seen <= BLOCK else -(-seen // BLOCK) * BLOCK_LEAVES
        per_tile = _per_tile(query.shape[1] // keys.shape[2])
        tiles = [
            self._tile(query[at : at + per_tile], queries[at : at + per_tile], keys[:, :leaves], values[:, :leaves])
            for at in range(0, len(queries), per_tile)
        ]
        return [
            (torch.cat([tile[block][0] for tile in tiles]), torch.cat([tile[block][1] for tile in tiles]))
            for block in range(len(tiles[0]))
        ]

    @property
    def _leaves(self) -> int:
        """A power of two for one block, whole blocks for more."""
        run = self._run
        if run.stop - run.start > 1:
            return (run.stop - run.start) * BLOCK_LEAVES
        return min(_leaves(max(run.row.length - run.start * BLOCK, 1)), BLOCK_LEAVES)

    def _tile(self, query: Tensor, queries: range, keys: Tensor, values: Tensor) -> list[Result]:
        """The results of one tile, block by block: `[tokens, heads, head_dim]` and `[tokens, heads]`."""
        tokens, heads, head_dim = query.shape
        kv_heads = keys.shape[2]
        group = heads // kv_heads
        tile, positions = _fold_heads(query, kv_heads, queries)
        return [
            (
                _unfold(mixed[0], tokens, group).reshape(-1, heads, head_dim),
                _unfold(sums[0, :, :, None], tokens, group).reshape(-1, heads),
            )
            for mixed, sums in _tiles(tile, positions, keys, values, self._run.start * BLOCK, self._kind)
        ]


def _tile_rows(group: int) -> int:
    """Rows of a tile: a property of the model, so that all its tiles are alike."""
    return -(-group // TILE_LEAST) * TILE_LEAST


def _leaves(length: int) -> int:
    """Leaves for `length` keys, rounded up to a power of two."""
    return 1 << (-(-length // LEAF) - 1).bit_length()


def _per_tile(group: int) -> int:
    """Tokens of a tile."""
    return _tile_rows(group) // group


def _fold_heads(query: Tensor, kv_heads: int, queries: range) -> tuple[Tensor, Tensor]:
    """Query `[tokens, heads, head_dim]` as one padded tile `[1, kv_heads, tile, head_dim]`, positions `[1, tile]`."""
    tokens, heads, head_dim = query.shape
    group = heads // kv_heads
    folded = query.reshape(tokens, kv_heads, group, head_dim).transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    positions = torch.tensor(queries).repeat_interleave(group)[None]
    missing = _tile_rows(group) - tokens * group
    return F.pad(folded, (0, 0, 0, missing)), F.pad(positions, (0, missing))


def _unfold(tile: Tensor, tokens: int, group: int) -> Tensor:
    """From `[kv_heads, tile, items]` to `[tokens, kv_heads, group, items]`."""
    return tile[:, : tokens * group].reshape(tile.shape[0], tokens, group, -1).transpose(0, 1)


def _cut_leaves(keys_values: Tensor) -> Result:
    """Keys and values out of `[n, keys, 2, kv_heads, head_dim]`, each `[n, leaves, kv_heads, LEAF, head_dim]`."""
    count, _, _, kv_heads, head_dim = keys_values.shape
    leaves = keys_values.view(count, -1, LEAF, 2, kv_heads, head_dim).permute(3, 0, 1, 4, 2, 5).contiguous()
    return leaves[0], leaves[1]


def _tiles(
    query: Tensor, positions: Tensor, keys: Tensor, values: Tensor, first: int, kind: AttentionKind
) -> list[Result]:
    """Query `[n, kv_heads, tile, head_dim]` at `[n, tile]` positions against keys from position `first` on.

    Block by block: out like the query, lse `[n, kv_heads, tile]`.
    """
    count, kv_heads, tile, head_dim = query.shape
    leaves = keys.shape[1]
    spread = query[:, None].expand(-1, leaves, -1, -1, -1).reshape(-1, tile, head_dim)
    # A block's leaves are a power of two; a run of several blocks has whole ones.
    shape = (count, -(-leaves // BLOCK_LEAVES), min(leaves, BLOCK_LEAVES), kv_heads, tile)
    scores = torch.bmm(spread, keys.reshape(-1, LEAF, head_dim).transpose(1, 2)).view(*shape, LEAF)
    scores = scores * kind.scale_of(head_dim)
    if kind.cap:
        scores = kind.cap * (scores / kind.cap).tanh()
    key_positions = torch.arange(first, first + leaves * LEAF).view(1, *shape[1:3], 1, 1, LEAF)
    query_positions = positions.view(count, 1, 1, 1, tile, 1)
    scores.masked_fill_(key_positions > query_positions, float("-inf"))
    if kind.window:
        scores.masked_fill_(key_positions <= query_positions - kind.window, float("-inf"))
    highest = scores.amax(dim=(2, 5)).clamp_min(_LOWEST)
    shares = scores.sub_(highest[:, :, None, :, :, None]).exp_()
    parts = torch.bmm(shares.view(-1, tile, LEAF), values.reshape(-1, LEAF, head_dim)).view(*shape, head_dim)
    total = _tree_sum(shares.sum(dim=-1))
    # The highest score's share is 1, so the bound matters only where no key is visible.
    out = _tree_sum(parts) / total.clamp_min(1.0).unsqueeze(-1)
    lse = total.log() + highest
    return list(zip(out.unbind(1), lse.unbind(1), strict=True))


def _tree_sum(parts: Tensor) -> Tensor:
    """Sum over the third axis, a power of two long, along a binary tree."""
    while parts.shape[2] > 1:
        parts = parts[:, :, 0::2] + parts[:, :, 1::2]
    return parts[:, :, 0]


_LOWEST = torch.finfo(torch.float32).min
