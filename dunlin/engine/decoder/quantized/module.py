"""The tensors of one quantised module, and what every way of storing weights does with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dunlin.model.errors import ModelError

BYTE_BITS = 8
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


def unpacked(words: Tensor, bits: int) -> Tensor:
    """The numbers of `bits` bits (2, 4 or 8) in int32 `words`, uint8, in one more axis: least significant first."""
    content = words.contiguous()[..., None].view(torch.uint8)
    if bits == BYTE_BITS:
        return content
    parts = [content >> shift & (1 << bits) - 1 for shift in range(0, BYTE_BITS, bits)]
    return torch.stack(parts, -1).flatten(-2)


def group_index(module: ModuleTensors, named: Tensor | None, group: int, groups: int) -> Tensor | None:
    """Which of `groups` each input belongs to, as `named` says; None: `group` inputs (0: all) after each other.

    :raises ModelError: a number beyond the groups.
    """
    if named is None:
        inputs = module.shape[1]
        return torch.arange(inputs) // group if group and inputs % group else None
    index = named.long()
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise module.fault(f"has inputs in groups {int(index.min())} to {int(index.max())} of {groups}")
    return index


def dequantised(numbers: Tensor, zeros: Tensor | None, scales: Tensor, index: Tensor | None) -> Tensor:
    """`(number - zero) * scale` of `[rows, inputs]`, float32; zeros and scales are `[rows, groups]` (`group_index`)."""

    def spread(by_group: Tensor) -> Tensor:
        each = by_group.float()
        return each[:, :, None] if index is None else each.index_select(1, index)

    found = numbers.float()
    if index is None:
        found = found.view(len(numbers), scales.shape[1], -1)
    if zeros is not None:
        found = found.sub_(spread(zeros))
    return found.mul_(spread(scales)).view(numbers.shape)
