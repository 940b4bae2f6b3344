"""The MLP's gates at once with their product, for few rows on a GPU: what is computed between is never written.

The library's other products of few rows read the weights as fast as a Triton kernel does
(`docs/measurements/2026-11-27-h100.md`).
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.hopper import launch_options
from dunlin.engine.attention.triton_tiles import IS_INTERPRETED
from dunlin.engine.decoder.gpu import triton_product_kernels as kernels
from dunlin.engine.decoder.gpu import triton_rows


@dataclass(frozen=True, slots=True)
class ProductTile:
    """For up to `most_rows` rows: columns of the result that a program computes, what it reads of a row at a time, its
    warps, and blocks that are on their way at once.
    """

    most_rows: int
    columns: int
    inner: int
    warps: int
    stages: int


TILES = (ProductTile(16, 32, 128, 4, 4), ProductTile(64, 64, 128, 4, 3))


def gated_linear(rows: Tensor, weight: Tensor) -> Tensor:
    """silu(gate) * up of `rows` `[count, inner]`: the first half of the lines of `weight` `[2 width, inner]` gives the
    gates, the rest what they let through.
    """
    tile = _tile_of(rows, weight)
    return triton_rows.silu_gate(F.linear(rows, weight)) if tile is None else gated_product(rows, weight, tile)


def gated_product(rows: Tensor, weight: Tensor, tile: ProductTile) -> Tensor:
    """`gated_linear` by the kernel. The last axis of `rows` and all of `weight` lie without gaps."""
    (count, inner), width = rows.shape, len(weight) // 2
    out = rows.new_empty(count, width)
    kernels.gated_rows[(triton.cdiv(width, tile.columns),)](
        rows, weight, out, count, width, rows.stride(0), out.stride(0),
        INNER=inner, ROWS=max(int(triton.next_power_of_2(count)), 16), BLOCK=tile.columns, BLOCK_INNER=tile.inner,
        IS_WIDENED=IS_INTERPRETED and rows.dtype is torch.bfloat16, num_warps=tile.warps, num_stages=tile.stages,
        **launch_options(),
    )  # fmt: skip
    return out


def _tile_of(rows: Tensor, weight: Tensor) -> ProductTile | None:
    """None: the kernel is not for these. What is interpreted is tried in every type, what is computed in bf16 alone."""
    is_type = rows.dtype is torch.bfloat16 or IS_INTERPRETED
    is_laid = rows.ndim == 2 and rows.stride(-1) == 1 and weight.is_contiguous()
    if not (is_type and is_laid and len(rows)):
        return None
    return next((tile for tile in TILES if len(rows) <= tile.most_rows), None)
