"""The results of a batch's rows while a pass computes them: fp32 until a row is finished, cast once."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.attention.base import BatchRow, PartialResult, Result, merge_results

OWN = -1
"""The order of what is merged as it comes: before all parts that have a position."""

Part = tuple[int, int]
"""A block of queries by its first one's index in the row, and the position at which the keys of a part begin."""


class RowResults:
    """Owns the packed results. `put` adds a piece's result to its row; `finish` casts what is complete."""

    def __init__(self, query: Tensor, rows: Sequence[BatchRow], dtype: torch.dtype) -> None:
        self.query = query
        self.out = query.new_empty(query.shape, dtype=dtype)
        self.lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        self._rows = rows
        self._parts: dict[int, dict[Part, Result]] = {}
        self._kept: tuple[Hashable, Any] | None = None

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Keys and values that several pieces in succession read: made when the `key` is not the last one's."""
        if self._kept is None or self._kept[0] != key:
            self._kept = key, make()
        return self._kept[1]

    def put(self, row: int, first: int, result: Result, is_last: bool, order: int = OWN) -> None:
        """Take in the result for the row's queries from its `first` on. `is_last`: nothing is to come for them.

        Results of the same `order` merge as they come; those of different orders in ascending order at the end.
        """
        parts = self._parts.setdefault(row, {})
        before = parts.pop((first, order), None)
        merged = result if before is None else merge_results(before, result)
        if is_last:
            self._write(row, first, merged)
        else:
            parts[first, order] = merged[0].float(), merged[1]

    def has_parts(self, row: int, first: int) -> bool:
        """Whether there are results for the row's queries from its `first` on, which are not finished."""
        return any(at == first for at, _ in self._parts.get(row, ()))

    def finish(self, row: int, arrived: Sequence[PartialResult]) -> None:
        """Merge what the row's blocks of queries have, in order of the keys' positions, and cast it."""
        parts = self._parts.pop(row, {})
        if not parts and not arrived:
            return
        tokens = self._rows[row].tokens
        firsts = sorted({first for first, _ in parts} or {0})
        for first, stop in zip(firsts, [*firsts[1:], tokens], strict=True):
            by_order = {order: result for (at, order), result in parts.items() if at == first}
            for part in arrived:
                by_order[part.positions.start] = part.out[first:stop].float(), part.lse[first:stop].float()
            self._write(row, first, reduce(merge_results, (by_order[order] for order in sorted(by_order))))

    @property
    def size_bytes(self) -> int:
        """Of the queries, the packed results, and the parts of rows that are not finished."""
        parts = [tensor for by_part in self._parts.values() for part in by_part.values() for tensor in part]
        return sum(tensor.nbytes for tensor in (self.query, self.out, self.lse, *parts))

    @property
    def unfinished(self) -> set[int]:
        """The rows that have parts."""
        return set(self._parts)

    def parts_of(self, row: int) -> dict[Part, Result]:
        """The unfinished parts of a row."""
        return dict(self._parts.get(row, {}))

    def packed(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """(query, out, lse) of a row, views."""
        span = slice(self._rows[row].start, self._rows[row].stop)
        return self.query[span], self.out[span], self.lse[span]

    def restore(self, row: int, out: Tensor, lse: Tensor, parts: Mapping[Part, Result]) -> None:
        """Go on with what a row had when it left another pass."""
        _, own_out, own_lse = self.packed(row)
        own_out.copy_(out)
        own_lse.copy_(lse)
        self._parts[row] = dict(parts)

    def _write(self, row: int, first: int, result: Result) -> None:
        at = self._rows[row].start + first
        self.out[at : at + len(result[0])] = result[0]
        self.lse[at : at + len(result[0])] = result[1]
