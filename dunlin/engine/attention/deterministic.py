"""Attention whose bits depend on a sequence's tokens alone: not on batch, chunk borders, extents, pieces, or where its
keys lie. fp32.

Queries go in tiles of `tile` folded rows, keys in leaves of `LEAF` tokens at absolute positions, so that every product
has one fixed shape. Leaves make blocks of `BLOCK` tokens: within a block the maximum is exact in any order, and sums
run along a binary tree whose leaves are a power of two; a tree over more leaves, all masked, adds exact zeros to the
same partial sums, so short rows may share a call at the same width. Blocks merge by their lse one after another in
order of position; a block that is wholly masked changes nothing. So a block is what a peer may hold and answer for: it
sends its result, and of blocks that it holds in part the K/V.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, PartialResult, Result, merge_results
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.row_results import OWN, RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, SlotSpan, count_below

TILE_LEAST = 16
LEAF = 64
BLOCK_LEAVES = 8
BLOCK = LEAF * BLOCK_LEAVES
# Keys that one call may gather for rows that share it; blocks that a piece of a long row reads.
SHARED_KEYS = 1 << 11
RUN_BLOCKS = 8
# Queries of a long row that a piece computes.
RUN_QUERIES = 64


class DeterministicAttention:
    """See `Attention`."""

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
        return PiecewisePlan(rows, _pieces(rows, kind), DeterministicCutter(rows, kind))

    def share(self, held: Sequence[range], length: int) -> tuple[list[tuple[range, ...]], list[range]]:
        """Results of whole blocks, K/V of the rest."""
        results: list[tuple[range, ...]] = []
        rooms: list[range] = []
        for block, positions in chain.from_iterable(map(_by_block, held)):
            if positions == range(block * BLOCK, min((block + 1) * BLOCK, length)):
                results.append((positions,))
            else:
                rooms.append(positions)
        return results, rooms


def _pieces(rows: Sequence[BatchRow], kind: AttentionKind) -> list[Piece]:
    short = [index for index, row in enumerate(rows) if _is_short(row)]
    groups = _groups(rows, short)
    pieces = [Piece(tuple(group), None, 0, _Shared([rows[index] for index in group], kind).compute) for group in groups]
    long = [index for index, row in enumerate(rows) if not _is_short(row) and not row.awaited]
    return pieces + [piece for index in long for piece in _long_pieces(index, rows[index], rows[index].keys, (), kind)]


class DeterministicCutter:
    """See `ArrivalCutter`."""

    def __init__(self, rows: Sequence[BatchRow], kind: AttentionKind) -> None:
        self._rows = rows
        self._kind = kind

    def check(self, row: int, part: PartialResult) -> None:
        """:raises ValueError: the part is not one block: its bits would depend on where its keys lie."""
        block = part.positions.start // BLOCK
        whole = range(block * BLOCK, (block + 1) * BLOCK)
        seen = whole[: max(self._rows[row].length - whole.start, 0)]
        if part.positions[: len(seen)] != seen or part.positions.stop > whole.stop:
            raise ValueError(
                f"a result over keys at {part.positions}: the deterministic mode merges whole blocks, here {whole}; "
                "send the K/V of what is less (`Attention.share`)"
            )

    def pieces_of(self, row: int, arrived: Sequence[Arrival], missing: int) -> Iterable[Piece]:
        """See `ArrivalCutter`: when all has come, for keys of one block may come from several holders."""
        if missing:
            return ()
        rooms = [span for span in arrived if isinstance(span, RoomSpan)]
        elsewhere = [part.positions for part in arrived if isinstance(part, PartialResult)]
        return _long_pieces(row, self._rows[row], (*self._rows[row].keys, *rooms), elsewhere, self._kind)


def _is_short(row: BatchRow) -> bool:
    """Whether the row may share a call: one query, all of its keys in one span of slots."""
    return (
        row.tokens == 1
        and not row.awaited
        and len(row.keys) == 1
        and isinstance(row.keys[0], SlotSpan)
        and row.keys[0].positions == range(row.length)
    )


def _groups(rows: Sequence[BatchRow], short: Sequence[int]) -> list[list[int]]:
    """Short rows, together where they need the same number of leaves."""
    groups: dict[int, list[list[int]]] = defaultdict(list)
    for index in short:
        width = _leaves(rows[index].length) * LEAF
        if not groups[width] or (len(groups[width][-1]) + 1) * width > SHARED_KEYS:
            groups[width].append([])
        groups[width][-1].append(index)
    return [group for width in sorted(groups) for group in groups[width]]


def _tile_rows(group: int) -> int:
    """Rows of a tile: a property of the model, so that all its tiles are alike."""
    return -(-group // TILE_LEAST) * TILE_LEAST


def _leaves(length: int) -> int:
    """Leaves for `length` keys, rounded up to a power of two."""
    return 1 << (-(-length // LEAF) - 1).bit_length()


def _by_block(positions: range) -> Iterator[tuple[int, range]]:
    """The ascending positions by the block that they lie in."""
    start = 0
    while start < len(positions):
        block = positions[start] // BLOCK
        stop = count_below(positions, (block + 1) * BLOCK)
        yield block, positions[start:stop]
        start = stop


class _Shared:
    """Rows of one token each: one tile per row, all tiles in one call."""

    def __init__(self, rows: Sequence[BatchRow], kind: AttentionKind) -> None:
        self._kind = kind
        self._width = _leaves(rows[0].length) * LEAF
        # A row's padding repeats its own last slot: masked, and always finite.
        slots = [F.pad(_slots(row)[None], (0, self._width - row.length), mode="replicate") for row in rows]
        self._slots = torch.cat(slots)
        self._at = torch.tensor([row.start for row in rows])
        self._positions = torch.tensor([row.length - 1 for row in rows])

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """All rows, also one that has left: bits do not depend on it, and nothing reads it."""
        query = results.query
        count, (heads, head_dim), kv_heads = len(self._at), query.shape[1:], layer_kv.shape[2]
        group = heads // kv_heads
        folded = query[self._at].view(count, kv_heads, group, head_dim)
        keys, values = _cut_leaves(layer_kv.index_select(0, self._slots.view(-1)).view(count, -1, *layer_kv.shape[1:]))
        tile = F.pad(folded, (0, 0, 0, _tile_rows(group) - group))
        positions = self._positions[:, None].expand(-1, tile.shape[2])
        mixed, sums = reduce(merge_results, _tiles(tile, positions, keys, values, 0, self._kind))
        results.out[self._at] = mixed[:, :, :group].reshape(count, heads, head_dim).to(results.out.dtype)
        results.lse[self._at] = sums[:, :, :group].reshape(count, heads)


def _slots(row: BatchRow) -> Tensor:
    span = row.keys[0]
    assert isinstance(span, SlotSpan)
    return span.slots()


def _long_pieces(
    index: int, row: BatchRow, spans: Sequence[KeySpan], elsewhere: Sequence[range], kind: AttentionKind
) -> Iterator[Piece]:
    """The pieces of one row over the blocks that are not `elsewhere`: run of keys after run, queries after queries."""
    missing = {positions.start // BLOCK for positions in elsewhere}
    held = _held_blocks(row.length, spans)
    at = 0
    for start, stop in _runs(sorted(held - missing)):
        run = _Run(row, spans, start, stop, kind)
        for first in range(0, row.tokens, RUN_QUERIES):
            # Queries that see none of the keys still have a result: the first run's.
            if at < -(-row.tokens // RUN_QUERIES) or row.queries[first : first + RUN_QUERIES][-1] >= start * BLOCK:
                yield Piece((index,), range(row.length), at, _Tiles(run, first).compute)
                at += 1


def _held_blocks(length: int, spans: Sequence[KeySpan]) -> set[int]:
    """The blocks of keys in `spans`. :raises ValueError: of one some keys before `length` are missing."""
    counts: dict[int, int] = defaultdict(int)
    for span in spans:
        for block, positions in _by_block(span.positions):
            counts[block] += count_below(positions, length)
    for block, count in counts.items():
        seen = range(block * BLOCK, min((block + 1) * BLOCK, length))
        if count != len(seen):
            raise ValueError(f"{count} keys at {seen}: the deterministic mode needs all of a block at one place")
    return set(counts)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending blocks as runs `[start, stop)` of at most `RUN_BLOCKS`."""
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1 or at - start == RUN_BLOCKS:
            yield blocks[start], blocks[at - 1] + 1
            start = at


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks `[start, stop)` of a row's keys."""

    row: BatchRow
    spans: Sequence[KeySpan]
    start: int
    stop: int
    kind: AttentionKind

    @property
    def leaves(self) -> int:
        """A power of two for one block, whole blocks for more."""
        if self.stop - self.start > 1:
            return (self.stop - self.start) * BLOCK_LEAVES
        return min(_leaves(max(self.row.length - self.start * BLOCK, 1)), BLOCK_LEAVES)

    def read(self, layer_kv: Tensor) -> Result:
        """Keys and values in leaves, zeros after the last that a query sees."""
        low, high = self.start * BLOCK, min(self.stop * BLOCK, self.row.length)
        kept = layer_kv.new_zeros(self.leaves * LEAF, *layer_kv.shape[1:])
        for span in self.spans:
            start, stop = count_below(span.positions, low), count_below(span.positions, high)
            if stop > start:
                places = span.positions[start:stop]
                kept[places.start - low : places[-1] + 1 - low : places.step] = span.gather(layer_kv, start, stop)
        return _cut_leaves(kept[None])


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The row's queries from `first` on, tile after tile over the same run of keys."""

    run: _Run
    first: int

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        row, index = self.run.row, rows[0]
        keys, values = results.kept((index, self.run.start), lambda: self.run.read(layer_kv))
        stop = min(self.first + RUN_QUERIES, row.tokens)
        queries, query = row.queries[self.first : stop], results.query[row.start + self.first : row.start + stop]
        seen = min(max(queries[-1] + 1 - self.run.start * BLOCK, 1), (self.run.stop - self.run.start) * BLOCK)
        leaves = min(_leaves(seen), self.run.leaves) if seen <= BLOCK else -(-seen // BLOCK) * BLOCK_LEAVES
        per_tile = _per_tile(query.shape[1] // layer_kv.shape[2])
        tiles = [
            self._tile(query[at : at + per_tile], queries[at : at + per_tile], keys[:, :leaves], values[:, :leaves])
            for at in range(0, len(queries), per_tile)
        ]
        for block in range(len(tiles[0])):
            result = torch.cat([tile[block][0] for tile in tiles]), torch.cat([tile[block][1] for tile in tiles])
            order = (self.run.start + block) * BLOCK if row.awaited else OWN
            results.put(index, self.first, result, is_last=False, order=order)

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
            for mixed, sums in _tiles(tile, positions, keys, values, self.run.start * BLOCK, self.run.kind)
        ]


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
