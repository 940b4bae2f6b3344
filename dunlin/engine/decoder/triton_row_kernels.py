"""The Triton kernels of what a layer does token by token besides products. In fp32 inside."""

import triton
import triton.language as tl


@triton.jit
def norm_rows(rows, weight, out, outer_stride, inner_stride, epsilon, INNER: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """RMS norm: grid (outer * INNER); row (i, j) begins at i * outer_stride + j * inner_stride."""
    at = tl.program_id(0).to(tl.int64)
    source = rows + (at // INNER) * outer_stride + (at % INNER) * inner_stride
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    row = tl.load(source + columns, mask=is_column, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / WIDTH + epsilon)
    factor = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + at * WIDTH + columns, (row * scale * factor).to(out.dtype.element_ty), mask=is_column)


@triton.jit
def gate_rows(rows, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) * up: grid (rows, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    source = rows + row * 2 * WIDTH + columns
    gate = tl.load(source, mask=is_column, other=0.0).to(tl.float32)
    through = tl.load(source + WIDTH, mask=is_column, other=0.0).to(tl.float32)
    # Rounded where torch rounds: after the activation.
    opened = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * WIDTH + columns, (opened * through).to(out.dtype.element_ty), mask=is_column)


@triton.jit
def turn_rows(vectors, turn, vector_stride, turn_stride, HEAD_DIM: tl.constexpr, PAIRS: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """Rotate a head in place: grid (tokens, heads). Dimension i pairs with i + PAIRS."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pairs = tl.arange(0, BLOCK)
    is_pair = pairs < PAIRS
    cosine = tl.load(turn + token * turn_stride + pairs, mask=is_pair, other=0.0)
    sine = tl.load(turn + token * turn_stride + PAIRS + pairs, mask=is_pair, other=0.0)
    place = vectors + token * vector_stride + head * HEAD_DIM + pairs
    left = tl.load(place, mask=is_pair, other=0.0).to(tl.float32)
    right = tl.load(place + PAIRS, mask=is_pair, other=0.0).to(tl.float32)
    tl.store(place, (left * cosine - right * sine).to(vectors.dtype.element_ty), mask=is_pair)
    tl.store(place + PAIRS, (right * cosine + left * sine).to(vectors.dtype.element_ty), mask=is_pair)
