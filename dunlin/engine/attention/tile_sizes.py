"""How large a GPU's tiles of queries are, and over how many programs the keys of a row of few queries are split.

Needs no Triton: what is reckoned of the kernels' memory before there is a GPU reads the same numbers.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

SHAPED_DIM = 128
"""Numbers of a head that tiles are made for, and of smaller ones."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Lines of a tile (queries times query heads of one KV head), keys that a program reads at a time, its warps, and
    blocks of keys that are on their way at once.
    """

    lines: int
    keys: int
    warps: int
    stages: int

    def fitted(self, lines: int, head_dim: int) -> "TileShape":
        """The same with no fewer lines; of wide heads it reads fewer keys at a time, for shared memory holds them."""
        keys = max(self.keys * SHAPED_DIM // max(head_dim, SHAPED_DIM), 16)
        return replace(self, lines=max(self.lines, lines), keys=keys)


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Tiles of prompts, in fp32 of fewer lines (products of that type leave the tensor cores, and more would not fit
    the registers), and of rows of few queries; keys of a split of a narrow row, about, and its splits at most. On other
    GPUs `python -m benchmarks.gpu.tune` finds what suits.
    """

    wide: TileShape = TileShape(128, 128, 8, 3)
    wide_fp32: TileShape = TileShape(32, 32, 4, 2)
    narrow: TileShape = TileShape(16, 128, 4, 2)
    split_keys: int = 512
    most_splits: int = 64

    def shapes(self, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[TileShape, TileShape]:
        """(narrow, wide) tiles: their lines are a power of two that all query heads of a KV head fit into."""
        group = _power_of_2(heads // kv_heads)
        wide, block = self.wide_fp32 if dtype is torch.float32 else self.wide, block_dim(head_dim)
        return self.narrow.fitted(group, block), wide.fitted(group, block)

    def splits_within(self, keys: int) -> int:
        """Splits of a narrow row of at most so many keys, at most."""
        return min(max((keys + self.split_keys // 2) // self.split_keys, 1), self.most_splits)


SIZES = TileSizes()


def block_dim(head_dim: int) -> int:
    """A product on the tensor cores has 16 terms at least."""
    return max(_power_of_2(head_dim), 16)


def split_lengths(keys: Tensor, sizes: TileSizes = SIZES) -> Tensor:
    """Keys of one of the programs that share a narrow row's, for rows of `keys`: `split_keys` of the kernels. About
    `sizes.split_keys`, so that no program has but a few: that costs as much as a full one.
    """
    splits = ((keys + sizes.split_keys // 2) // sizes.split_keys).clamp(1, sizes.most_splits)
    return (-(-keys // (splits * sizes.narrow.keys))).clamp_min(1) * sizes.narrow.keys


def split_counts(keys: Tensor, sizes: TileSizes = SIZES) -> Tensor:
    """Programs that share a narrow row's keys, for rows of `keys`: the longest row may have fewer than another one."""
    return -(-keys // split_lengths(keys, sizes))


def _power_of_2(least: int) -> int:
    """The least one that is no smaller."""
    return 1 << (least - 1).bit_length()
