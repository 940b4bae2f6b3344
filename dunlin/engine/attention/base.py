"""The interface of an attention backend, and the merge of partial results.

The keys and values of one layer are `[slot, 2, kv_heads, head_dim]`; a sequence's are found by its slots in order of
position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvLocation:
    """Where the KV of a sequence's tokens `[0, length)` lies: one run of slots from `first`, or the slots listed in
    `slots` `[length]`.
    """

    length: int
    first: int
    slots: Tensor | None

    def gather(self, layer_kv: Tensor, start: int, stop: int) -> Tensor:
        """The KV of tokens `[start, stop)`: a slice where the slots are one run, else a copy. `[tokens, 2, kv_heads,
        head_dim]`.
        """
        if self.slots is None:
            return layer_kv[self.first + start : self.first + stop]
        return layer_kv.index_select(0, self.slots[start:stop])

    def index(self) -> Tensor:
        """The slots of all tokens, `[length]` int64."""
        return torch.arange(self.first, self.first + self.length) if self.slots is None else self.slots[: self.length]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence's part of a batch: packed tokens `[start, stop)`, the last of which is token `past.length - 1` of
    the sequence.
    """

    start: int
    stop: int
    kv_location: KvLocation

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def context_tokens(self) -> int:
        """How many tokens of the sequence precede the row."""
        return self.kv_location.length - self.tokens


Safepoint = Callable[[], None]


class AttendLayer(Protocol):
    """Attention of one batch in one layer."""

    def __call__(self, query: Tensor, layer_kv: Tensor, safepoint: Safepoint) -> tuple[Tensor, Tensor]:
        """Causal attention of every row's tokens over its sequence so far, whose KV is already in the slots.

        Args:
            query: `[tokens, heads, head_dim]`, rotated, packed like the rows.
            layer_kv: `[slot, 2, kv_heads, head_dim]`.
            safepoint: called between bounded pieces of long work.

        Returns:
            (out `[tokens, heads, head_dim]` in the query's dtype, lse `[tokens, heads]` fp32).
        """
        ...


class Attention(Protocol):
    """A backend: plans a batch once, for all its layers."""

    def __call__(self, rows: Sequence[BatchRow]) -> AttendLayer:
        """`rows` cover the packed tokens in order, without gaps."""
        ...


def merge_partial_attention(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from (out, lse) over each."""
    (out_a, lse_a), (out_b, lse_b) = first, second
    lse = torch.logaddexp(lse_a, lse_b)
    share_a, share_b = (lse_a - lse).exp().unsqueeze(-1), (lse_b - lse).exp().unsqueeze(-1)
    return (out_a * share_a + out_b * share_b).to(out_a.dtype), lse
