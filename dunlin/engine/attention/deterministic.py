"""Attention whose bits depend on a sequence's tokens alone: not on batch, chunk borders, extents, pieces, or where its
keys lie. fp32.

Keys are cut into blocks of `BLOCK` tokens at absolute positions. What a query makes of a block depends on the keys that
it sees there alone (`Blocks`), and blocks merge by their lse one after another in order of position; a block of which a
query sees nothing changes nothing. So a block is what a peer may hold and answer for: it sends its result, and of
blocks that it holds in part the K/V.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain

import torch
from torch import Tensor

from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, PartialResult, merge_results
from dunlin.engine.attention.block_kernel import KernelBlocks
from dunlin.engine.attention.block_tiles import TileBlocks
from dunlin.engine.attention.blocks import BLOCK, BlockRun, Blocks, RunBlocks
from dunlin.engine.attention.native.library import KernelUnavailable, load_kernel
from dunlin.engine.attention.piecewise import Arrival, Piece, PiecewisePlan
from dunlin.engine.attention.row_results import OWN, RowResults
from dunlin.engine.attention.spans import KeySpan, RoomSpan, SlotSpan, count_below

# Blocks that a piece of a long row reads.
RUN_BLOCKS = 8
# Queries of a long row that a piece computes.
RUN_QUERIES = 64


class DeterministicAttention:
    """See `Attention`. `blocks`: what computes them; None: the CPU's kernel, or torch where there is none."""

    def __init__(self, blocks: Blocks | None = None) -> None:
        self._given = blocks

    @cached_property
    def blocks(self) -> Blocks:
        """What computes blocks of keys."""
        if self._given is not None:
            return self._given
        try:
            return KernelBlocks(load_kernel())
        except KernelUnavailable:
            return TileBlocks()

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
        blocks = self.blocks.of(kind)
        return PiecewisePlan(rows, _pieces(rows, blocks), DeterministicCutter(rows, blocks))

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


def _pieces(rows: Sequence[BatchRow], blocks: Blocks) -> list[Piece]:
    short = [index for index, row in enumerate(rows) if _is_short(row)]
    pieces = [
        Piece(tuple(group), None, 0, _Shared([rows[index] for index in group], blocks).compute)
        for group in _groups(rows, short, blocks)
    ]
    for index in sorted(set(range(len(rows))) - set(short)):
        if not rows[index].awaited:
            pieces += _long_pieces(index, rows[index], rows[index].keys, (), blocks)
    return pieces


class DeterministicCutter:
    """See `ArrivalCutter`."""

    def __init__(self, rows: Sequence[BatchRow], blocks: Blocks) -> None:
        self._rows = rows
        self._blocks = blocks

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
        return _long_pieces(row, self._rows[row], (*self._rows[row].keys, *rooms), elsewhere, self._blocks)


def _is_short(row: BatchRow) -> bool:
    """Whether the row may share a call: one query, all of its keys in one span of slots."""
    return (
        row.tokens == 1
        and not row.awaited
        and len(row.keys) == 1
        and isinstance(row.keys[0], SlotSpan)
        and row.keys[0].positions == range(row.length)
    )


def _groups(rows: Sequence[BatchRow], short: Sequence[int], blocks: Blocks) -> list[list[int]]:
    """Short rows, together where their keys have one width."""
    groups: dict[int, list[list[int]]] = defaultdict(list)
    for index in short:
        width = blocks.width(rows[index].length)
        if not groups[width] or (len(groups[width][-1]) + 1) * width > blocks.shared_keys:
            groups[width].append([])
        groups[width][-1].append(index)
    return [group for width in sorted(groups) for group in groups[width]]


def _by_block(positions: range) -> Iterator[tuple[int, range]]:
    """The ascending positions by the block that they lie in."""
    start = 0
    while start < len(positions):
        block = positions[start] // BLOCK
        stop = count_below(positions, (block + 1) * BLOCK)
        yield block, positions[start:stop]
        start = stop


class _Shared:
    """Rows of one token each, all with keys of one width."""

    def __init__(self, rows: Sequence[BatchRow], blocks: Blocks) -> None:
        self._blocks = blocks.short(rows)
        self._at = torch.tensor([row.start for row in rows])

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """All rows, also one that has left: bits do not depend on it, and nothing reads it."""
        mixed, sums = reduce(merge_results, self._blocks.compute(results.query, layer_kv))
        results.out[self._at] = mixed.to(results.out.dtype)
        results.lse[self._at] = sums


def _long_pieces(
    index: int, row: BatchRow, spans: Sequence[KeySpan], elsewhere: Sequence[range], blocks: Blocks
) -> Iterator[Piece]:
    """The pieces of one row over the blocks that are not `elsewhere`: run of keys after run, queries after queries."""
    missing = {positions.start // BLOCK for positions in elsewhere}
    held = _held_blocks(row.length, spans)
    at = 0
    for start, stop in _runs(sorted(held - missing)):
        run = BlockRun(row, spans, start, stop)
        computed = blocks.long(run)
        for first in range(0, row.tokens, RUN_QUERIES):
            # Queries that see none of the keys still have a result: the first run's.
            if at < -(-row.tokens // RUN_QUERIES) or row.queries[first : first + RUN_QUERIES][-1] >= start * BLOCK:
                yield Piece((index,), range(row.length), at, _Part(run, computed, first).compute)
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
class _Part:
    """The row's queries from `first` on, over a run of its keys."""

    run: BlockRun
    blocks: RunBlocks
    first: int

    def compute(self, results: RowResults, layer_kv: Tensor, rows: Sequence[int]) -> None:
        """See `piecewise.Compute`."""
        row, run, index = self.run.row, self.run, rows[0]
        kept = results.kept((index, run.start), lambda: self.blocks.read(layer_kv))
        stop = min(self.first + RUN_QUERIES, row.tokens)
        query = results.query[row.start + self.first : row.start + stop]
        for at, result in enumerate(self.blocks.compute(kept, query, row.queries[self.first : stop])):
            order = (run.start + at) * BLOCK if row.awaited else OWN
            results.put(index, self.first, result, is_last=False, order=order)
