"""The built kernels for batches of few tokens in bf16, if they fit this processor, and when they compute.

Whatever they are not for goes to torch: other dtypes, more rows, odd shapes.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.attention.native.library import KernelUnavailable, load_library

SOURCE = Path(__file__).with_name("row_products.cpp")
LIBRARY = SOURCE.with_suffix(".so")
PRODUCT_ROWS = (0, 32, 64, 64)
"""By the processor's level: more rows torch multiplies as fast, or the kernels for prompts do."""
OTHER_ROWS = 64
"""Norms, turns and gates of more rows are worth several threads."""
COLUMNS = 4
TOLERANCE = 0.02
"""Relative: bf16 rounds to 1/256."""


@dataclass(frozen=True, slots=True)
class RowKernels:
    """Each method returns None, or False, where torch should compute instead."""

    library: Any
    level: int

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """`rows @ weight.T + bias`; `rows` `[rows, inputs]`, `weight` `[columns, inputs]`."""
        if rows.dtype is not torch.bfloat16 or rows.ndim != 2 or rows.shape[0] > PRODUCT_ROWS[self.level]:
            return None
        count, (columns, inputs) = rows.shape[0], weight.shape
        if columns % COLUMNS or rows.stride(1) != 1 or not weight.is_contiguous() or not _is_bf16(weight, bias):
            return None
        out = rows.new_empty(count, columns)
        self.library.dunlin_product(
            rows.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            count,
            columns,
            inputs,
            rows.stride(0),
            self.level,
            torch.get_num_threads(),
        )
        return out

    def norm(self, rows: Tensor, weight: Tensor, epsilon: float) -> Tensor | None:
        """RMS norm of `rows` `[rows, width]`."""
        if not _is_small(rows) or not _is_bf16(rows, weight) or rows.stride(1) != 1:
            return None
        out = torch.empty(rows.shape, dtype=torch.bfloat16)
        count, width = rows.shape
        self.library.dunlin_norm(
            rows.data_ptr(), weight.data_ptr(), out.data_ptr(), count, width, rows.stride(0), epsilon
        )
        return out

    def silu_gate(self, rows: Tensor) -> Tensor | None:
        """silu(gate) * up of `rows` `[rows, 2 width]`: the gates, then what they let through."""
        if not _is_small(rows) or not _is_bf16(rows) or not rows.is_contiguous():
            return None
        out = rows.new_empty(rows.shape[0], rows.shape[1] // 2)
        self.library.dunlin_gate(rows.data_ptr(), out.data_ptr(), *out.shape)
        return out

    def turn(self, vectors: Tensor, heads: int, turn: Tensor) -> bool:
        """Turn the first `heads` of `vectors` `[tokens, all heads, head_dim]` in place, by `[tokens, 2, 1, pairs]`."""
        count, _, dim = vectors.shape
        if count > OTHER_ROWS or not _is_bf16(vectors) or vectors.stride()[1:] != (dim, 1):
            return False
        turn = turn.contiguous()
        turned = 2 * turn.shape[-1]
        self.library.dunlin_turn(vectors.data_ptr(), turn.data_ptr(), count, heads, dim, turned, vectors.stride(0))
        return True


def load_row_kernels(library: Path = LIBRARY, source: Path = SOURCE) -> RowKernels:
    """:raises KernelUnavailable: as `load_library`, or the processor lacks the instructions."""
    loaded = load_library(library, source)
    level = loaded.dunlin_level()
    if not level:
        raise KernelUnavailable("this processor has no AVX-512")
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    loaded.dunlin_product.argtypes = [*[pointer] * 4, *[number] * 4, *[ctypes.c_int] * 2]
    loaded.dunlin_norm.argtypes = [*[pointer] * 3, *[number] * 3, real]
    loaded.dunlin_gate.argtypes = [*[pointer] * 2, *[number] * 2]
    loaded.dunlin_turn.argtypes = [*[pointer] * 2, *[number] * 5]
    return RowKernels(loaded, level)


def choose_row_kernels() -> RowKernels | None:
    """The kernels, where they were built, can run here, and multiply as torch does."""
    try:
        kernels = load_row_kernels()
    except KernelUnavailable:
        return None
    random = torch.Generator().manual_seed(1)
    rows, weight = (torch.randn(count, 200, generator=random).bfloat16() for count in (3, 64))
    found, wanted = kernels.product(rows, weight, None), rows.float() @ weight.float().T
    is_right = found is not None and torch.allclose(found.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE * 16)
    return kernels if is_right else None


def _is_small(rows: Tensor) -> bool:
    return rows.ndim == 2 and rows.shape[0] <= OTHER_ROWS


def _is_bf16(*tensors: Tensor | None) -> bool:
    return all(tensor is None or tensor.dtype is torch.bfloat16 for tensor in tensors)
