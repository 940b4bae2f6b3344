"""The Triton kernel of a product of few rows whose results are gates and what they let through."""

import triton
import triton.language as tl

from dunlin.engine.attention.hopper import begin_dependent
from dunlin.engine.decoder.gpu.triton_row_kernels import let_through


@triton.jit(do_not_specialize=["count"])
def gated_rows(
    rows, weight, out, count, width, row_stride, out_stride,
    INNER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_INNER: tl.constexpr,
    IS_WIDENED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up: grid (blocks of columns). Gates are the products of `rows` `[count, INNER]` with the first
    `width` lines of `weight` `[2 width, INNER]`, up those with the rest. Rounded as a product is, and
    then as `gate_rows` rounds.

    IS_WIDENED: operands are made fp32 first, for the interpreter multiplies no bf16.
    """
    begin_dependent(IS_DEPENDENT)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    line = tl.minimum(columns, width - 1).to(tl.int64)
    row, inner = tl.arange(0, ROWS), tl.arange(0, BLOCK_INNER)
    is_row = (row < count)[:, None]
    from_row = rows + row[:, None] * row_stride + inner[None, :]
    from_gate = weight + line[:, None] * INNER + inner[None, :]
    from_up = from_gate + width.to(tl.int64) * INNER
    gate, up = tl.zeros([ROWS, BLOCK], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, INNER, BLOCK_INNER):
        if INNER % BLOCK_INNER:
            is_inner = (inner + start < INNER)[None, :]
            given = tl.load(from_row + start, mask=is_row & is_inner, other=0.0)
            of_gate = tl.load(from_gate + start, mask=is_inner, other=0.0)
            of_up = tl.load(from_up + start, mask=is_inner, other=0.0)
        else:
            given = tl.load(from_row + start, mask=is_row, other=0.0)
            of_gate, of_up = tl.load(from_gate + start), tl.load(from_up + start)
        if IS_WIDENED:
            given, of_gate, of_up = given.to(tl.float32), of_gate.to(tl.float32), of_up.to(tl.float32)
        gate = tl.dot(given, tl.trans(of_gate), gate, input_precision="ieee")
        up = tl.dot(given, tl.trans(of_up), up, input_precision="ieee")
    gate, up = gate.to(out.dtype.element_ty).to(tl.float32), up.to(out.dtype.element_ty).to(tl.float32)
    is_item = is_row & (columns < width)[None, :]
    into = out + row[:, None] * out_stride + columns[None, :]
    tl.store(into, let_through(gate, up, out.dtype.element_ty), mask=is_item)
