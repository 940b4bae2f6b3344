"""The built kernels for the linear work of batches of many tokens in bf16, if they fit this processor.

Whatever they are not for goes to torch: other dtypes, odd strides.
"""

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.native.library import KernelUnavailable, load_library
from dunlin.engine.decoder.native.trial import least_s

SOURCE = Path(__file__).with_name("prompt_products.cpp")
LIBRARY = SOURCE.with_suffix(".so")
BF16_DOT, TILES, FP32 = 1, 2, 3
"""Levels: the processor multiplies in pairs of bf16, by its matrix unit (AMX), or in fp32."""
LEAST_ROWS = 8
"""Vectors of 16 rows are too empty below: torch multiplies as fast, or faster."""
TOLERANCE = 0.02
"""Relative: bf16 rounds to 1/256."""
ANY = 1 << 62
TRIALS = ((256, ANY), (64, 128))
"""Rows of products that both compute before the kernel is chosen, and for how many rows at most it then is."""
TRIED_HIDDEN, TRIED_INNER = 512, 1024
"""Numbers of a token outside and inside the MLP that is tried."""
TURNS = 10


@dataclass(frozen=True, slots=True)
class PromptKernels:
    """Each method returns None, or False, where torch should compute instead. `most_rows`: of products that are faster
    than torch's.
    """

    library: Any
    level: int
    most_rows: int = ANY

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """`rows @ weight.T + bias`; `rows` `[rows, inputs]`, `weight` `[columns, inputs]`."""
        if rows.ndim != 2 or not _is_bf16(rows):
            return None
        out = rows.new_empty(rows.shape[0], weight.shape[0])
        return out if self.product_into(out, rows, weight, bias) else None

    def product_into(self, into: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """The same into `into` `[rows, columns]`, which may be some columns of a larger result."""
        if not self._takes(rows, weight) or not _is_bf16(into, bias) or into.stride(1) != 1:
            return False
        self.library.dunlin_product(
            rows.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            into.data_ptr(),
            rows.shape[0],
            *weight.shape,
            rows.stride(0),
            into.stride(0),
            self.level,
            torch.get_num_threads(),
        )
        return True

    def product_onto(self, into: Tensor, residual: Tensor, rows: Tensor, weight: Tensor) -> bool:
        """`residual` and `rows @ weight.T`, rounded before, by tiles; `into` may be the residual, `[rows, columns]`."""
        if self.level != TILES or not self._takes(rows, weight) or not _is_bf16(into, residual):
            return False
        if into.stride(1) != 1 or into.stride() != residual.stride():
            return False
        place = rows.data_ptr(), weight.data_ptr(), residual.data_ptr(), into.data_ptr(), rows.shape[0], *weight.shape
        self.library.dunlin_product_onto(*place, rows.stride(0), into.stride(0), torch.get_num_threads())
        return True

    def gated_product(self, rows: Tensor, weight: Tensor) -> Tensor | None:
        """`silu_gate` of `rows @ weight.T`, by tiles; `weight` `[2 columns, inputs]`."""
        width, odd = divmod(weight.shape[0], 2)
        out = rows.new_empty(rows.shape[0], width)
        return out if not odd and self.gated_into(out, rows, weight[:width], weight[width:]) else None

    def gated_into(self, into: Tensor, rows: Tensor, gates: Tensor, ups: Tensor) -> bool:
        """`silu(rows @ gates.T) * (rows @ ups.T)`, by tiles, into `[rows, columns]`; weights `[columns, inputs]`."""
        if self.level != TILES or not self._takes(rows, gates) or not self._takes(rows, ups):
            return False
        if not _is_bf16(into) or into.stride(1) != 1:
            return False
        place = rows.data_ptr(), gates.data_ptr(), ups.data_ptr(), into.data_ptr(), rows.shape[0], *gates.shape
        self.library.dunlin_gated_product(*place, rows.stride(0), into.stride(0), torch.get_num_threads())
        return True

    def _takes(self, rows: Tensor, weight: Tensor) -> bool:
        """Whether these are multiplied here."""
        if rows.ndim != 2 or not LEAST_ROWS <= rows.shape[0] <= self.most_rows:
            return False
        return _is_bf16(rows, weight) and rows.stride(1) == 1 and weight.is_contiguous()

    def norm(self, rows: Tensor, weight: Tensor, epsilon: float) -> Tensor | None:
        """RMS norm of `rows` `[rows, width]`."""
        if rows.ndim != 2 or rows.stride(1) != 1 or not _is_bf16(rows, weight):
            return None
        out = torch.empty(rows.shape, dtype=torch.bfloat16)
        place = rows.data_ptr(), weight.data_ptr(), out.data_ptr()
        self.library.dunlin_norm(*place, *rows.shape, rows.stride(0), epsilon, torch.get_num_threads())
        return out

    def silu_gate(self, rows: Tensor) -> Tensor | None:
        """silu(gate) * up of `rows` `[rows, 2 width]`: the gates, then what they let through."""
        if rows.ndim != 2 or not rows.is_contiguous() or not _is_bf16(rows):
            return None
        out = rows.new_empty(rows.shape[0], rows.shape[1] // 2)
        self.library.dunlin_gate(rows.data_ptr(), out.data_ptr(), *out.shape, torch.get_num_threads())
        return out

    def turn(self, vectors: Tensor, heads: int, turn: Tensor) -> bool:
        """Turn the first `heads` of `vectors` `[tokens, all heads, head_dim]` in place, by `[tokens, 2, 1, pairs]`."""
        count, _, dim = vectors.shape
        if not _is_bf16(vectors) or vectors.stride()[1:] != (dim, 1):
            return False
        turn = turn.contiguous()
        shape = count, heads, dim, 2 * turn.shape[-1]
        self.library.dunlin_turn(
            vectors.data_ptr(), turn.data_ptr(), *shape, vectors.stride(0), torch.get_num_threads()
        )
        return True

    def put(self, layer_kv: Tensor, slots: Tensor, rows: Tensor) -> bool:
        """Copy `rows` `[tokens, 2 kv_heads, head_dim]` to their slots of `layer_kv` `[slot, 2, kv_heads, head_dim]`."""
        if rows.dtype is not layer_kv.dtype or not layer_kv.is_contiguous() or not slots.is_contiguous():
            return False
        if rows.stride()[1:] != (rows.shape[2], 1):
            return False
        width, row_bytes = layer_kv[0].nbytes, rows.stride(0) * rows.element_size()
        place = rows.data_ptr(), layer_kv.data_ptr(), slots.data_ptr()
        self.library.dunlin_put(*place, len(rows), width, row_bytes, torch.get_num_threads())
        return True


def load_prompt_kernels(library: Path = LIBRARY, source: Path = SOURCE) -> PromptKernels:
    """:raises KernelUnavailable: as `load_library`, or the processor lacks the instructions."""
    loaded = load_library(library, source)
    level = loaded.dunlin_level()
    if not level:
        raise KernelUnavailable("this processor has no AVX-512")
    pointer, number, real, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
    loaded.dunlin_product.argtypes = [*[pointer] * 4, *[number] * 5, count, count]
    for by_tiles in (loaded.dunlin_product_onto, loaded.dunlin_gated_product):
        by_tiles.argtypes = [*[pointer] * 4, *[number] * 5, count]
    loaded.dunlin_norm.argtypes = [*[pointer] * 3, *[number] * 3, real, count]
    loaded.dunlin_gate.argtypes = [*[pointer] * 2, *[number] * 2, count]
    loaded.dunlin_turn.argtypes = [*[pointer] * 2, *[number] * 5, count]
    loaded.dunlin_put.argtypes = [*[pointer] * 3, *[number] * 3, count]
    return PromptKernels(loaded, level)


def choose_prompt_kernels() -> PromptKernels | None:
    """The kernels, where they were built, can run here, and multiply as torch does; with products of as many rows as
    an MLP with theirs is the faster one for: what comes with a product counts too. Without bf16 instructions torch
    takes three times as long as in fp32, and nothing is measured.
    """
    try:
        kernels = load_prompt_kernels()
    except KernelUnavailable:
        return None
    random = torch.Generator().manual_seed(1)
    gates = torch.randn(2 * TRIED_INNER, TRIED_HIDDEN, generator=random).bfloat16()
    down = torch.randn(TRIED_HIDDEN, TRIED_INNER, generator=random).bfloat16()
    tried = {count: torch.randn(count, TRIED_HIDDEN, generator=random).bfloat16() for count, _ in TRIALS}
    if not all(_is_right(kernels, rows, gates) for rows in tried.values()):
        return None
    if kernels.level == FP32:
        return kernels
    worth = (most for count, most in TRIALS if _is_faster(kernels, tried[count], gates, down))
    return replace(kernels, most_rows=next(worth, 0))


def _is_faster(kernels: PromptKernels, rows: Tensor, gates: Tensor, down: Tensor) -> bool:
    hidden, torchs = torch.zeros_like(rows), replace(kernels, most_rows=0)
    ways = (lambda: _mlp(kernels, hidden, rows, gates, down), lambda: _mlp(torchs, hidden, rows, gates, down))
    ours_s, torchs_s = least_s(ways, TURNS)
    return ours_s < torchs_s


def _mlp(kernels: PromptKernels, hidden: Tensor, rows: Tensor, gates: Tensor, down: Tensor) -> Tensor:
    """`hidden` and a gated MLP of `rows`, by these kernels, and by torch where they leave it to torch."""
    gated = kernels.gated_product(rows, gates)
    if gated is None:
        gated = kernels.silu_gate(_linear(kernels, rows, gates))
        assert gated is not None
    return hidden if kernels.product_onto(hidden, hidden, gated, down) else hidden + _linear(kernels, gated, down)


def _linear(kernels: PromptKernels, rows: Tensor, weight: Tensor) -> Tensor:
    found = kernels.product(rows, weight, None)
    return F.linear(rows, weight) if found is None else found


def _is_right(kernels: PromptKernels, rows: Tensor, weight: Tensor) -> bool:
    found, wanted = kernels.product(rows, weight, None), rows.float() @ weight.float().T
    return found is not None and torch.allclose(found.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE * 16)


def _is_bf16(*tensors: Tensor | None) -> bool:
    return all(tensor is None or tensor.dtype is torch.bfloat16 for tensor in tensors)
