"""The Triton kernels of what a layer does token by token besides products. In fp32 inside."""

import triton
import triton.language as tl

from dunlin.engine.attention.hopper import begin_dependent

NO_COLUMN = tl.constexpr(2**31 - 1)


@triton.jit
def norm_rows(rows, weight, out, outer_stride, inner_stride, epsilon, INNER: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):  # fmt: skip
    """RMS norm: grid (outer * INNER); row (i, j) begins at i * outer_stride + j * inner_stride."""
    begin_dependent(IS_DEPENDENT)
    at = tl.program_id(0).to(tl.int64)
    source = rows + (at // INNER) * outer_stride + (at % INNER) * inner_stride
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    row = tl.load(source + columns, mask=is_column, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / WIDTH + epsilon)
    factor = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + at * WIDTH + columns, (row * scale * factor).to(out.dtype.element_ty), mask=is_column)


@triton.jit
def let_through(gate, through, item: tl.constexpr):
    """silu(gate) * through of fp32 numbers that were rounded to `item`, rounded where torch rounds: after the
    activation.
    """
    opened = (gate / (1.0 + tl.exp(-gate))).to(item).to(tl.float32)
    return (opened * through).to(item)


@triton.jit
def gate_rows(rows, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    """silu(gate) * up: grid (rows, blocks of columns)."""
    begin_dependent(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    source = rows + row * 2 * WIDTH + columns
    gate = tl.load(source, mask=is_column, other=0.0).to(tl.float32)
    through = tl.load(source + WIDTH, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, let_through(gate, through, out.dtype.element_ty), mask=is_column)


@triton.jit
def e4m3_bits(rows):
    """fp32 `rows` rounded to fp8 (E4M3) to the nearest, ties to even, as its bits; ends at 448. By whole numbers, for
    Triton's interpreter rounds such numbers wrongly.
    """
    bits = rows.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    is_none = size > 0x7F800000
    cut = tl.minimum(size, 0x43E00000)  # 448
    normal = ((cut + 0x7FFFF + ((cut >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below the least normal number, 2**-6, they are multiples of 2**-9, which is the last bit of a number near 2**14.
    small = (cut.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    found = tl.where(is_none, 0x7F, tl.where(cut < 0x3C800000, small, normal))
    return (((bits >> 24) & 0x80) | found).to(tl.uint8)


@triton.jit
def kept(rows, IS_NARROW: tl.constexpr):
    """`rows` as KV has them."""
    if IS_NARROW:
        return e4m3_bits(rows.to(tl.float32))
    else:
        return rows


@triton.jit(do_not_specialize_on_alignment=("slots",))
def place_rows(vectors, turn, layer_kv, slots, vector_stride, turn_stride, slot_stride, HEADS: tl.constexpr,
               TURNED: tl.constexpr, ALL: tl.constexpr, HEAD_DIM: tl.constexpr, PAIRS: tl.constexpr,
               REST: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
               BLOCK_REST: tl.constexpr, IS_NARROW: tl.constexpr, IS_DEPENDENT: tl.constexpr):  # fmt: skip
    """Rotate queries and keys as `turn_rows` does, queries in place, and write keys and values to their slot: grid
    (tokens, blocks of heads). Of ALL heads the first HEADS are queries, those up to TURNED rotated. What has a slot
    below 0 is not written. IS_NARROW: KV is fp8, and `layer_kv` its bytes.
    """
    begin_dependent(IS_DEPENDENT)
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
    tl.store(from_slot + pairs[None, :], kept(left, IS_NARROW), mask=is_item & is_kept[:, None])
    tl.store(from_slot + PAIRS + pairs[None, :], kept(right, IS_NARROW), mask=is_item & is_kept[:, None])
    if REST > 0:
        rest = tl.arange(0, BLOCK_REST)
        is_rest = is_kept[:, None] & (rest < REST)[None, :]
        others = tl.load(from_query + 2 * PAIRS + rest[None, :], mask=is_rest, other=0.0)
        tl.store(from_slot + 2 * PAIRS + rest[None, :], kept(others, IS_NARROW), mask=is_rest)


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


@triton.jit
def greatest_of_parts(scores, part_score, part_at, width, stride, PART: tl.constexpr, BLOCK: tl.constexpr,
                      IS_DEPENDENT: tl.constexpr):  # fmt: skip
    """The greatest of each PART columns, the first of equals: grid (rows, parts). No number, if one of them is none."""
    begin_dependent(IS_DEPENDENT)
    row, part = tl.program_id(0), tl.program_id(1)
    source = scores + row.to(tl.int64) * stride
    best, best_at = tl.full([BLOCK], float("-inf"), tl.float32), tl.full([BLOCK], 0, tl.int32)
    is_broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, PART, BLOCK):
        at = part * PART + start + tl.arange(0, BLOCK)
        score = tl.load(source + at, mask=at < width, other=float("-inf"))
        is_broken |= (score != score).to(tl.int32)
        is_better = (score > best) | (start == 0)
        best, best_at = tl.where(is_better, score, best), tl.where(is_better, at, best_at)
    highest = tl.max(best, 0)
    first = tl.min(tl.where(best == highest, best_at, NO_COLUMN), 0)
    highest = tl.where(tl.sum(is_broken, 0) > 0, float("nan"), highest)
    place = row * tl.num_programs(1) + part
    tl.store(part_score + place, highest)
    tl.store(part_at + place, first)


@triton.jit
def greatest_of_rows(part_score, part_at, found, parts, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    """The greatest of a row's parts: grid (rows). `found` `[2, rows]`: its column, and whether it is finite."""
    begin_dependent(IS_DEPENDENT)
    row, part = tl.program_id(0), tl.arange(0, BLOCK)
    place = row * parts + part
    score = tl.load(part_score + place, mask=part < parts, other=float("-inf"))
    at = tl.load(part_at + place, mask=part < parts, other=NO_COLUMN)
    is_broken = tl.sum((score != score).to(tl.int32), 0) > 0
    highest = tl.max(tl.where(score == score, score, float("-inf")), 0)
    first = tl.min(tl.where(score == highest, at, NO_COLUMN), 0)
    is_fine = (is_broken == 0) & (highest > float("-inf")) & (highest < float("inf"))
    tl.store(found + row, tl.where(first == NO_COLUMN, 0, first).to(tl.int64))
    tl.store(found + tl.num_programs(0) + row, is_fine.to(tl.int64))
