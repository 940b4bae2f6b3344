"""The tensors of one quantised module, and what every way of storing weights does with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dunlin.model.errors import ModelError

INT_BITS = 32
ROW_STEP = 32
"""Rows are asked for from a multiple of this on: where no packed word begins between."""
RowReader = Callable[[int, int], Tensor]
"""(first row, the row after the last) -> those rows, float32 `[rows, inputs]`."""


@dataclass(frozen=True, slots=True)
class ModuleTensors:
    """A module's name, the `shape` of its weights, and its tensors by the last part of their names."""

    directory: Path
    name: str
    shape: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    def fault(self, what: str) -> ModelError:
        return ModelError(self.directory, f"`{self.name}` {what}", "fetch or write the checkpoint again")


def unpacked(words: Tensor, bits: int, axis: int) -> Tensor:
    """The numbers of `bits` bits in int32 `words`, least significant first, one after another along `axis`."""
    shifts = torch.arange(0, INT_BITS, bits, dtype=torch.int32)
    if axis == 0:
        return ((words[:, None] >> shifts[None, :, None]) & (1 << bits) - 1).flatten(0, 1)
    return ((words[:, :, None] >> shifts) & (1 << bits) - 1).flatten(1)


def group_index(module: ModuleTensors, named: Tensor | None, group: int, groups: int) -> Tensor:
    """Which of `groups` each input belongs to; `named` says so, or inputs follow each other, `group` (0: all) in each.

    :raises ModelError: a number beyond the groups.
    """
    if named is None:
        return torch.arange(module.shape[1]) // (group or module.shape[1])
    index = named.long()
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise module.fault(f"has inputs in groups {int(index.min())} to {int(index.max())} of {groups}")
    return index
