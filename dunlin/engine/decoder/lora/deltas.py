"""What adapters add to a product whose rows have one each, or none: several beside each other in one batch.

Rows name adapters by number, 0 for none. The product with the model's own weights is over all rows; then comes one
pass for each adapter over the rows that have it. The numbers stay on the host, so that which rows an adapter has is
known there without waiting for the device. Knows no layer and no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.decoder.host_copies import to_device

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(rows, weight, bias) -> the product."""


@dataclass(frozen=True, slots=True)
class DeltaPart:
    """One adapted module: to columns `columns` of the result come `up` `[columns, rank]` times the columns `ranks` of
    the small product.
    """

    ranks: slice
    columns: slice
    up: Tensor


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """What one adapter adds to one product: `down` `[ranks of all modules, inputs]`, then `parts`. The scales are in
    the matrices. Modules that are fused in the block share the input, so their `down` is one product.
    """

    down: Tensor
    parts: tuple[DeltaPart, ...]

    def to(self, device: torch.device) -> "BlockDelta":
        """The same on `device`."""
        parts = (DeltaPart(part.ranks, part.columns, part.up.to(device)) for part in self.parts)
        return BlockDelta(self.down.to(device), tuple(parts))

    def add(self, linear: Linear, given: Tensor, out: Tensor) -> None:
        """Add it to `out` `[rows, columns]`, the product of `given` `[rows, inputs]`."""
        small = linear(given, self.down, None)
        for part in self.parts:
            ranks = small if len(self.parts) == 1 else small[:, part.ranks].contiguous()
            out[:, part.columns] += linear(ranks, part.up, None)


Deltas = Mapping[int, BlockDelta]
"""What each adapter, by its number, adds to one product."""
AddDeltas = Callable[[Linear, Tensor, Deltas, Tensor, Tensor], None]
"""(linear, adapters of the rows (on the host), deltas, given, out) -> None: add to `out` what the rows' adapters do."""


def add_gathered(linear: Linear, adapters: Tensor, deltas: Deltas, given: Tensor, out: Tensor) -> None:
    """Each adapter over its own rows alone."""
    for number in _numbers(adapters):
        delta = deltas.get(number)
        if delta is None:
            continue
        rows = (adapters == number).nonzero()[:, 0]
        if len(rows) == len(adapters):
            delta.add(linear, given, out)
        else:
            there = to_device(rows, out.device)
            part = out.index_select(0, there)
            delta.add(linear, given.index_select(0, there), part)
            out.index_copy_(0, there, part)


def add_whole(linear: Linear, adapters: Tensor, deltas: Deltas, given: Tensor, out: Tensor) -> None:
    """Each adapter over all rows, whatever they have, and kept where it is theirs: of one shape in every batch."""
    for number in _numbers(adapters):
        delta = deltas.get(number)
        if delta is not None:
            changed = out.clone()
            delta.add(linear, given, changed)
            own = to_device(adapters == number, out.device)
            out.copy_(torch.where(own[:, None], changed, out))


def _numbers(adapters: Tensor) -> Sequence[int]:
    """Those that rows have, least first."""
    return sorted({*adapters.tolist()} - {0})
