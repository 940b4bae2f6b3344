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
def place_rows(vectors, turn, layer_kv, slots, vector_stride, turn_stride, slot_stride, HEADS: tl.constexpr,
               TURNED: tl.constexpr, ALL: tl.constexpr, HEAD_DIM: tl.constexpr, PAIRS: tl.constexpr,
               REST: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
               BLOCK_REST: tl.constexpr):  # fmt: skip
    """Rotate queries and keys as `turn_rows` does, queries in place, and write keys and values to their slot: grid
    (tokens, blocks of heads). Of ALL heads the first HEADS are queries, those up to TURNED rotated. What has a slot
    below 0 is not written.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    pairs = tl.arange(0, BLOCK_PAIRS)
    is_pair = pairs < PAIRS
    cosine = tl.load(turn + token * turn_stride + pairs, mask=is_pair, other=0.0)[None, :]
    sine = tl.load(turn + token * turn_stride + PAIRS + pairs, mask=is_pair, other=0.0)[None, :]
    slot = tl.load(slots + token)
    is_query, is_kept = head < HEADS, (head >= HEADS) & (head < ALL) & (slot >= 0)
    is_item = (head < ALL)[:, None] & is_pair[None, :]
    from_query = vectors + token * vector_stride + head[:, None] * HEAD_DIM
    from_slot = layer_kv + slot * slot_stride + (head[:, None] - HEADS) * HEAD_DIM
    left = tl.load(from_query + pairs[None, :], mask=is_item, other=0.0)
    right = tl.load(from_query + PAIRS + pairs[None, :], mask=is_item, other=0.0)
    is_turned = (head < TURNED)[:, None]
    turned_left = (left.to(tl.float32) * cosine - right.to(tl.float32) * sine).to(left.dtype)
    turned_right = (right.to(tl.float32) * cosine + left.to(tl.float32) * sine).to(left.dtype)
    left, right = tl.where(is_turned, turned_left, left), tl.where(is_turned, turned_right, right)
    tl.store(from_query + pairs[None, :], left, mask=is_item & is_query[:, None])
    tl.store(from_query + PAIRS + pairs[None, :], right, mask=is_item & is_query[:, None])
    tl.store(from_slot + pairs[None, :], left, mask=is_item & is_kept[:, None])
    tl.store(from_slot + PAIRS + pairs[None, :], right, mask=is_item & is_kept[:, None])
    if REST > 0:
        rest = tl.arange(0, BLOCK_REST)
        is_rest = is_kept[:, None] & (rest < REST)[None, :]
        others = tl.load(from_query + 2 * PAIRS + rest[None, :], mask=is_rest, other=0.0)
        tl.store(from_slot + 2 * PAIRS + rest[None, :], others, mask=is_rest)


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
