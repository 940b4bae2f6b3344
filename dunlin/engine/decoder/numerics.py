"""How row-wise work is cut: freely, or so that bits do not depend on the other rows of the batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import Attention
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from dunlin.engine.decoder.experts import MixExperts, mix_gathered, mix_whole
from dunlin.engine.decoder.piece_sizes import LEAST_COLUMNS, LEAST_ROWS

# In work of one fixed shape a row's bits depend neither on its place nor on its neighbours. Small, because decode
# batches are.
TILE_ROWS = 16

# Fewer rows are limited by reading the weights, not by arithmetic.
BATCH_ROWS = 5

# oneDNN makes a kernel for each number of rows, which takes longer than a short prompt. So there are few beyond decode
# batches: these are padded to the next multiple of a tile.
EXACT_ROWS = 32
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")

RowWise = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Numerics:
    """`rows(function, *inputs)` applies a row-wise function to inputs that agree in their first axis; `linear(input,
    weight, bias)` is the product; `attention` is the backend; `experts` mixes experts. Linear work that is cut has
    blocks of `piece_rows` at least, and pieces of `piece_columns` of a block's products; None: these may not be cut.
    """

    rows: Callable[..., Tensor]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    attention: Attention
    piece_rows: int
    piece_columns: int | None
    experts: MixExperts = mix_gathered


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`rows @ weight.T + bias`; fp32 batches by oneDNN, on some processors twice as fast as torch's choice for them
    (`python -m benchmarks.engine.matmul` compares the two).
    """
    if rows.dtype is torch.float32 and rows.shape[0] >= BATCH_ROWS and _HAS_ONEDNN:
        count = rows.shape[0]
        padding = -count % TILE_ROWS if count > EXACT_ROWS else 0
        padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows
        product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
        return product[:count]
    return F.linear(rows, weight, bias)


def linear_into(into: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """`linear` into some columns of a larger result: in bf16 without a copy."""
    if bias is None and rows.dtype is torch.bfloat16:
        torch.mm(rows, weight.t(), out=into)
    else:
        into.copy_(linear(rows, weight, bias))


def apply_at_once(function: RowWise, *inputs: Tensor) -> Tensor:
    """All rows in one call."""
    return function(*inputs)


def apply_in_tiles(function: RowWise, *inputs: Tensor) -> Tensor:
    """One call per `TILE_ROWS` rows, the last tile padded with zeros: the function sees one shape only."""
    count = inputs[0].shape[0]
    outs = []
    for start in range(0, count, TILE_ROWS):
        outs.append(function(*(_tile(each, start) for each in inputs)))
    return torch.cat(outs)[:count]


def _tile(rows: Tensor, start: int) -> Tensor:
    """A copy, so that its alignment is the same for every tile."""
    tile = rows[start : start + TILE_ROWS]
    padding = (0, 0) * (rows.ndim - 1) + (0, TILE_ROWS - tile.shape[0])
    return F.pad(tile, padding) if tile.shape[0] < TILE_ROWS else tile.clone()


def fast_numerics(attention: str = "torch") -> Numerics:
    """The quickest numerics: bits may depend on the batch."""
    return Numerics(apply_at_once, linear, ATTENTION_BACKENDS[attention](), LEAST_ROWS, LEAST_COLUMNS)


def deterministic_numerics() -> Numerics:
    """Fixed shapes throughout; offered in fp32."""
    return Numerics(apply_in_tiles, F.linear, ATTENTION_BACKENDS["deterministic"](), TILE_ROWS, None, mix_whole)
