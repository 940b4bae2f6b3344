"""The interface of an attention backend, and the merge of partial results.

A backend plans a batch once and attends once per layer. A layer's attention is an `AttentionPass`: bounded pieces of
work, between which rows may leave and partial results of peers may arrive.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, overload

import torch
from torch import Tensor

from dunlin.engine.attention.spans import KeySpan, RoomSpan, Runs, SlotSpan, slot_run, slot_span

Result = tuple[Tensor, Tensor]
"""(out `[tokens, heads, head_dim]`, lse `[tokens, heads]` fp32). lse is -inf, and out 0, where no key is visible."""


class AttentionKind(NamedTuple):
    """What a layer's attention does besides the usual; positions are absolute, so spans and chunks change nothing.

    A query sees the keys at the last `window` positions, its own included (0: all up to its own). Scores are multiplied
    by `scale` (0: by `head_dim ** -0.5`), then become `cap * tanh(score / cap)` (0: stay).
    """

    window: int = 0
    cap: float = 0.0
    scale: float = 0.0

    def scale_of(self, head_dim: int) -> float:
        return self.scale or head_dim**-0.5

    def first_seen(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        return max(position + 1 - self.window, 0) if self.window else 0

    def sees_all(self, queries: range, keys: range) -> bool:
        """Whether the window hides none of the keys from any of the queries."""
        return not self.window or not keys or queries[-1] - keys[0] < self.window


PLAIN = AttentionKind()


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence's part of a batch: packed tokens `[start, stop)` at absolute positions `queries` of the sequence.

    `keys` hold the KV that is here, in order of position; `awaited` names the positions of keys that arrive by
    `AttentionPass.add`, in any order (a result over several spans: see `covered_by`). A query sees the keys at
    positions up to its own.
    """

    start: int
    stop: int
    queries: range
    keys: tuple[KeySpan, ...]
    awaited: tuple[range, ...] = ()

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def length(self) -> int:
        """One more than the last position that a query sees."""
        return self.queries[-1] + 1


def local_row(start: int, stop: int, span: SlotSpan | int, length: int | None = None) -> BatchRow:
    """The row of a sequence that is wholly here and whose last token is the row's last: its keys are `span`, or
    `length` tokens in one run of slots from slot `span`.
    """
    held = slot_run(range(length or 0), span) if isinstance(span, int) else span
    stop_position = len(held.positions)
    return BatchRow(start, stop, range(stop_position - (stop - start), stop_position), (held,))


def ragged_rows(counts: Sequence[tuple[int, int]], slots: Sequence[int]) -> list[BatchRow]:
    """Rows of (tokens, tokens before them), one after another, of which each has the next of the `slots`."""
    rows: list[BatchRow] = []
    at = first = 0
    for tokens, before in counts:
        length = tokens + before
        rows.append(local_row(at, at + tokens, slot_span(range(length), slots[first : first + length])))
        at, first = at + tokens, first + length
    return rows


class LocalRows(Sequence[BatchRow]):
    """The rows of sequences that are wholly here, as columns: a row becomes an object only where one is asked for.

    Row i has packed tokens `[starts[i], stops[i])`, the last of the sequence's `lengths[i]`, whose slots are `runs[i]`:
    `run_at` and `run_slot` of a `SlotSpan`. The same tuple of runs from step to step says that no run was added.
    """

    __slots__ = ("lengths", "runs", "starts", "stops")

    def __init__(self, starts: list[int], stops: list[int], lengths: list[int], runs: "list[Runs]") -> None:
        self.starts, self.stops, self.lengths, self.runs = starts, stops, lengths, runs

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> BatchRow: ...
    @overload
    def __getitem__(self, index: slice) -> "LocalRows": ...
    def __getitem__(self, index: "int | slice") -> "BatchRow | LocalRows":
        if isinstance(index, slice):
            return LocalRows(self.starts[index], self.stops[index], self.lengths[index], self.runs[index])
        span = SlotSpan(range(self.lengths[index]), *self.runs[index])
        return local_row(self.starts[index], self.stops[index], span)


@dataclass(frozen=True, slots=True)
class PartialResult:
    """A peer's attention of one row's queries over the keys at `positions` alone, or over spans that these cover
    (`covered_by`): out `[tokens, heads, head_dim]` and lse `[tokens, heads]`, fp32.
    """

    positions: range
    out: Tensor
    lse: Tensor

    @property
    def size_bytes(self) -> int:
        """Of the tensors."""
        return self.out.nbytes + self.lse.nbytes


@dataclass(frozen=True, slots=True)
class RowState:
    """A row that left a layer's attention: enough to go on with it in another pass, also elsewhere.

    `out` and `lse` hold the blocks of queries that are finished; `parts` the fp32 results so far of those that are not,
    by their first query and the position of their first key; `progress` counts the pieces done of each span of keys.
    `arrived` are the partial results that were added before it left.
    """

    query: Tensor
    out: Tensor
    lse: Tensor
    parts: Mapping[tuple[int, int], Result]
    progress: Mapping[range, int]
    arrived: tuple[PartialResult, ...] = ()


class AttentionPass(Protocol):
    """Attention of one batch in one layer, as pieces of bounded work."""

    @property
    def done(self) -> bool:
        """Whether every row that has not left is finished, awaited keys included."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of queries, results, and what has arrived."""
        ...

    def advance(self) -> bool:
        """Compute one piece, if any is ready; returns whether another one is.

        A piece is at most `PIECE_PAIRS` (query, key) pairs of rows of many tokens, or `DECODE_PAIRS` of rows of one.
        """
        ...

    def leave(self, row: int) -> RowState:
        """Take row number `row` out of the pass; the other rows' results do not change.

        :raises ValueError: it has left already.
        """
        ...

    def add(self, row: int, span: RoomSpan | PartialResult) -> None:
        """Keys that row number `row` awaits have arrived: as K/V, or as a peer's result over them.

        :raises ValueError: the row does not await keys at these positions, or this backend cannot merge such a part.
        """
        ...

    def result(self) -> Result:
        """(out, lse) packed like the queries; undefined for rows that left.

        :raises ValueError: not done.
        """
        ...


class AttentionPlan(Protocol):
    """A batch, planned once for all its layers of one kind."""

    def start(
        self,
        query: Tensor,
        layer_kv: Tensor,
        resumed: Mapping[int, RowState] | None = None,
        dtype: torch.dtype | None = None,
    ) -> AttentionPass:
        """Attention of every row's queries over its keys, whose KV is already in its place.

        Args:
            query: `[tokens, heads, head_dim]`, rotated, packed like the rows.
            layer_kv: `[slot, 2, kv_heads, head_dim]`.
            resumed: by row number, rows that left a pass of this layer and go on where they stood. Their queries, and
                the positions of their keys span by span, must be the same; where those lie may have changed. What had
                arrived as K/V and was not finished must be awaited again; partial results come along.
            dtype: of the result; the queries' own by default. A holder answers in fp32.

        Raises:
            ValueError: a resumed row was computed over a span of keys that the row does not have.
        """
        ...


class Attention(Protocol):
    """A backend."""

    def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> AttentionPlan:
        """`rows` cover the packed tokens in order, without gaps."""
        ...

    def share(self, held: Sequence[range], length: int) -> tuple[list[tuple[range, ...]], list[range]]:
        """How a holder of the keys at positions `held`, in order, of a sequence whose keys end at `length`, contributes
        to a row elsewhere: the spans of each partial result that it computes, and the positions of the keys whose K/V
        it sends.
        """
        ...


def covered_by(spans: Sequence[range]) -> range:
    """What names a partial result over these spans of keys, in order of position: all positions from their first to
    their last. No other result of the row begins with the same key.
    """
    return spans[0] if len(spans) == 1 else range(spans[0].start, spans[-1].stop)


# About 5 ms of one core's work for 16 heads of 64 in bf16: prefill is bound by arithmetic, decode by reading keys.
PIECE_PAIRS = 1 << 17
DECODE_PAIRS = 1 << 14

Safepoint = Callable[[], None]


def run_pass(attention_pass: AttentionPass, safepoint: Safepoint) -> Result:
    """Compute a pass to its end, with a safepoint between its pieces."""
    while attention_pass.advance():
        safepoint()
    return attention_pass.result()


def merge_results(first: Result, second: Result) -> Result:
    """Attention over the union of two disjoint sets of keys, in fp32. Exact where one of them saw no key."""
    (out_a, lse_a), (out_b, lse_b) = first, second
    highest = torch.maximum(lse_a, lse_b).clamp_min(_LOWEST)
    share_a, share_b = (lse_a - highest).exp(), (lse_b - highest).exp()
    total = share_a + share_b
    mixed = out_a * share_a.unsqueeze(-1) + out_b * share_b.unsqueeze(-1)
    # No key in either: 0 / 0 would be no number. Else the greater share is 1, so the bound changes nothing.
    return mixed / total.clamp_min(1.0).unsqueeze(-1), total.log() + highest


_LOWEST = torch.finfo(torch.float32).min
