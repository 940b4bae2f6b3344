"""Blocks of keys in the deterministic mode: what is computed on its own, and merges in order of position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from dunlin.engine.attention.base import AttentionKind, BatchRow, Result
from dunlin.engine.attention.spans import KeySpan, SlotSpan, count_below

BLOCK = 512
"""Keys of a block, by their absolute positions: the member that holds all of a part computes it."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks `[start, stop)` of a row's keys, which lie in `spans`."""

    row: BatchRow
    spans: Sequence[KeySpan]
    start: int
    stop: int

    @property
    def keys(self) -> range:
        """The positions that a query of the row sees."""
        return range(self.start * BLOCK, min(self.stop * BLOCK, self.row.length))

    def gather(self, layer_kv: Tensor, count: int) -> Tensor:
        """The KV at `count` positions from the run's first one on, zeros after the last that a query sees."""
        low, high = self.keys.start, self.keys.stop
        kept = layer_kv.new_zeros(count, *layer_kv.shape[1:])
        for span in self.spans:
            start, stop = count_below(span.positions, low), count_below(span.positions, high)
            if stop > start:
                places = span.positions[start:stop]
                kept[places.start - low : places[-1] + 1 - low : places.step] = span.gather(layer_kv, start, stop)
        return kept


class ShortBlocks(Protocol):
    """Rows of one token each, with as many blocks."""

    def compute(self, query: Tensor, layer_kv: Tensor) -> list[Result]:
        """Block by block, the rows' results `[rows, heads, head_dim]` and `[rows, heads]`."""
        ...


class RunBlocks(Protocol):
    """A run of blocks of one row's keys."""

    def read(self, layer_kv: Tensor) -> Any:
        """What `compute` needs of the keys in a layer, for any of the row's queries."""
        ...

    def compute(self, kept: Any, query: Tensor, queries: range) -> list[Result]:
        """Block by block, the results of `query` `[tokens, heads, head_dim]` at positions `queries`. Blocks that none
        of the queries sees may be left out at the end.
        """
        ...


class Blocks(Protocol):
    """A way of computing blocks in layers of one kind, such that a query's bits depend on the keys alone that it sees
    of a block.
    """

    @property
    def shared_keys(self) -> int:
        """Keys that short rows may have together in one call."""
        ...

    def of(self, kind: AttentionKind) -> "Blocks":
        """The same for layers of `kind`."""
        ...

    def width(self, length: int) -> int:
        """The keys of a short row of `length` as they are computed: rows of one width may share a call."""
        ...

    def short(self, rows: Sequence[BatchRow]) -> ShortBlocks:
        """For rows of one token and one span each, which have the same width."""
        ...

    def long(self, run: BlockRun) -> RunBlocks:
        """For a run of blocks of one row."""
        ...


def one_span(row: BatchRow) -> SlotSpan:
    """The only span of a row whose keys all lie in slots."""
    span = row.keys[0]
    assert isinstance(span, SlotSpan)
    return span
