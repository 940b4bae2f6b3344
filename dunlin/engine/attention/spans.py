"""Where keys and values lie: spans of a sequence's tokens, by absolute position.

A span in the KV cache is runs of slots, so that a kernel streams and nothing is gathered per layer. A span in a room is
a tensor outside the KV cache that travelled here.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Runs = tuple["array[int]", "array[int]"]
"""`run_at` and `run_slot` of a `SlotSpan`. Never changed once made."""


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """Tokens at `positions` (ascending) whose KV lies in the KV cache: token `positions[i]` in slot
    `run_slot[r] + i - run_at[r]`, `r` being the last run with `run_at[r] <= i`. `run_at` starts with 0; there may be
    runs after the last token.
    """

    positions: range
    run_at: "array[int]"
    run_slot: "array[int]"

    def gather(self, layer_kv: Tensor, start: int, stop: int) -> Tensor:
        """The KV of tokens `positions[start:stop]`: a slice where their slots are one run, else a copy. `[tokens, 2,
        kv_heads, head_dim]`.
        """
        run = bisect_right(self.run_at, start) - 1
        if run + 1 == len(self.run_at) or self.run_at[run + 1] >= stop:
            first = self.run_slot[run] - self.run_at[run]
            return layer_kv[first + start : first + stop]
        return layer_kv.index_select(0, self.slots()[start:stop].to(layer_kv.device))

    def slots(self) -> Tensor:
        """The slots of all tokens, `[tokens]` int64."""
        count = len(self.positions)
        if len(self.run_at) == 1:
            return torch.arange(self.run_slot[0], self.run_slot[0] + count)
        runs = bisect_left(self.run_at, count)
        starts = torch.tensor(self.run_at[:runs])
        lengths = torch.diff(starts, append=starts.new_tensor([count]))
        return torch.arange(count) + (torch.tensor(self.run_slot[:runs]) - starts).repeat_interleave(lengths)


def end_to_end(spans: Sequence[SlotSpan]) -> SlotSpan:
    """The keys of spans without strides, as if each span began where the one before ends."""
    run_at, run_slot, count = array("q"), array("q"), 0
    for span in spans:
        runs = bisect_left(span.run_at, len(span.positions))
        run_at.extend(count + at for at in span.run_at[:runs])
        run_slot.extend(span.run_slot[:runs])
        count += len(span.positions)
    start = spans[0].positions.start
    return SlotSpan(range(start, start + count), run_at, run_slot)


@dataclass(frozen=True, slots=True)
class RoomSpan:
    """Tokens at `positions` (ascending) whose KV lies in `room` `[tokens, 2, kv_heads, head_dim]`, for the layer that
    is computed. The room must keep its content until the `AttentionPass` that reads it is done.
    """

    positions: range
    room: Tensor

    @property
    def size_bytes(self) -> int:
        """Of the room."""
        return self.room.nbytes

    def gather(self, layer_kv: Tensor, start: int, stop: int) -> Tensor:
        """The KV of tokens `positions[start:stop]`, without a copy."""
        return self.room[start:stop]


KeySpan = SlotSpan | RoomSpan


def slot_span(positions: range, slots: Sequence[int]) -> SlotSpan:
    """The span of tokens at `positions` that lie in `slots`, one each."""
    run_at, run_slot = array("q"), array("q")
    for at, slot in enumerate(slots):
        if not run_at or slot != run_slot[-1] + at - run_at[-1]:
            run_at.append(at)
            run_slot.append(slot)
    return SlotSpan(positions, run_at, run_slot)


def slot_run(positions: range, first: int) -> SlotSpan:
    """The span of tokens at `positions` that lie in one run of slots from `first`."""
    return SlotSpan(positions, array("q", [0]), array("q", [first]))


def count_below(positions: range, bound: int) -> int:
    """How many of the ascending `positions` are less than `bound`."""
    return min(max(-(-(bound - positions.start) // positions.step), 0), len(positions))
