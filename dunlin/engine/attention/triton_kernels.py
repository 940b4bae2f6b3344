"""The Triton kernels of paged attention. Run on CPU tensors too, by Triton's interpreter (TRITON_INTERPRET=1).

A row of `table` is a `CellTable` row: token, out, tokens, query at, query step, key at, key step, from, to, and two
columns for `expand_slots`. A tile is some of a row's queries with the query heads of one KV head, folded into lines:
line i is query i // GROUP and head i % GROUP. Scores and results are fp32.
"""

import triton
import triton.language as tl

from dunlin.engine.attention.hopper import begin_dependent

COLUMNS = tl.constexpr(11)
LOG2E = tl.constexpr(1.4426950408889634)


PLACES = ("table", "slot_at", "slots", "run_at", "run_slot", "tiles")
"""Arguments with places: a kernel is the same wherever they begin, or steps would wait while another is compiled."""


@triton.jit(do_not_specialize_on_alignment=PLACES)
def expand_slots(table, run_at, run_slot, slot_at, slots, BLOCK: tl.constexpr):
    """Write the slot of each key `[from, to)` of each row: grid (rows, blocks of keys)."""
    row = tl.program_id(0)
    columns = table + row * COLUMNS
    begin, end = tl.load(columns + 7), tl.load(columns + 8)
    first_run, runs = tl.load(columns + 9), tl.load(columns + 10)
    index = begin + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_key = index < end
    low = tl.zeros([BLOCK], tl.int64)
    high = low + runs - 1
    left = runs - 1
    while left > 0:  # the last run that begins at or before the key
        middle = (low + high + 1) // 2
        is_before = tl.load(run_at + first_run + middle) <= index
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle - 1)
        left = left // 2
    slot = tl.load(run_slot + first_run + low) + index - tl.load(run_at + first_run + low)
    tl.store(slots + tl.load(slot_at + row) + index, slot.to(tl.int32), mask=is_key)


@triton.jit
def tile_keys(columns, first, window, QUERIES: tl.constexpr, IS_WINDOWED: tl.constexpr):
    """The keys [begin, end) that a query of the tile from query `first` on may see."""
    tokens, query_at, query_step = tl.load(columns + 2), tl.load(columns + 3), tl.load(columns + 4)
    key_at, key_step = tl.load(columns + 5), tl.load(columns + 6)
    begin, end = tl.load(columns + 7), tl.load(columns + 8)
    last = query_at + (tl.minimum(first + QUERIES, tokens) - 1) * query_step
    seen = tl.where(last >= key_at, (last - key_at) // key_step + 1, 0)
    end = tl.minimum(end, seen)
    if IS_WINDOWED:
        lowest = query_at + first * query_step - window + 1
        hidden = tl.where(lowest > key_at, (lowest - key_at + key_step - 1) // key_step, 0)
        begin = tl.maximum(begin, hidden)
    return begin, end


@triton.jit
def split_keys(columns, SPLIT_KEYS: tl.constexpr, SPLIT_STEP: tl.constexpr, MOST_SPLITS: tl.constexpr):
    """Keys of one split of a row, about SPLIT_KEYS and a multiple of SPLIT_STEP: it depends on the row alone, so the
    row's bits do not depend on the batch.
    """
    count = tl.load(columns + 8) - tl.load(columns + 7)
    splits = tl.minimum(tl.maximum((count + SPLIT_KEYS // 2) // SPLIT_KEYS, 1), MOST_SPLITS)
    each = (count + splits - 1) // splits
    return tl.maximum((each + SPLIT_STEP - 1) // SPLIT_STEP, 1) * SPLIT_STEP


@triton.jit
def take_block(
    queries, keys, values, is_seen, highest, total, mixed, scale, cap,
    IS_MASKED: tl.constexpr, IS_CAPPED: tl.constexpr, IS_WIDENED: tl.constexpr,
):  # fmt: skip
    """Take a block of keys and values into the lines' sums; returns (highest score, total, mixed). `is_seen` of each
    line and key counts where IS_MASKED.
    """
    rate = LOG2E if IS_CAPPED else scale * LOG2E
    item = values.dtype
    if IS_WIDENED:
        keys, values = keys.to(tl.float32), values.to(tl.float32)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if IS_CAPPED:
        scores = cap * (2.0 / (1.0 + tl.exp(-2.0 * scale * scores / cap)) - 1.0)
    if IS_MASKED:
        scores = tl.where(is_seen, scores, float("-inf"))
    risen = tl.maximum(highest, tl.max(scores, 1) * rate)
    base = risen
    if IS_MASKED:
        base = tl.where(risen == float("-inf"), 0.0, risen)  # no key is seen yet: -inf less -inf is no number
    shares = tl.exp2(scores * rate - base[:, None])
    kept = tl.exp2(highest - base)
    total = total * kept + tl.sum(shares, 1)
    rounded = shares.to(item)
    if IS_WIDENED:
        rounded = rounded.to(tl.float32)
    mixed = mixed * kept[:, None] + tl.dot(rounded, values, input_precision="ieee")
    return risen, total, mixed


@triton.jit
def attend_keys(
    queries, position, highest, total, mixed, head_kv, slot_from, begin, end, key_at, key_step, slot_stride, scale, cap,
    window, ITEM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, VALUES_AT: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, IS_MASKED: tl.constexpr, IS_CAPPED: tl.constexpr, IS_WINDOWED: tl.constexpr,
    IS_WIDENED: tl.constexpr,
):  # fmt: skip
    """Take the keys [begin, end) into the lines' sums, a block at a time; returns (highest score, total, mixed).

    They are made ITEM, the type of the queries, which narrow KV is not. IS_MASKED: some line may not see some key;
    without it every line sees all of them, and the blocks are whole.
    """
    dims = tl.arange(0, BLOCK_DIM)
    for start in range(begin, end, BLOCK_KEYS):
        index = start + tl.arange(0, BLOCK_KEYS)
        is_seen = index < end
        if IS_MASKED:
            is_key = index < end
            slot = tl.load(slot_from + index, mask=is_key, other=0).to(tl.int64)
            is_item = is_key[:, None] & (dims < HEAD_DIM)[None, :]
        else:
            slot = tl.load(slot_from + index).to(tl.int64)
            is_item = (dims < HEAD_DIM)[None, :]
        places = head_kv + slot[:, None] * slot_stride + dims[None, :]
        if IS_MASKED or HEAD_DIM < BLOCK_DIM:
            keys = tl.load(places, mask=is_item, other=0.0)
            values = tl.load(places + VALUES_AT, mask=is_item, other=0.0)
        else:
            keys = tl.load(places)
            values = tl.load(places + VALUES_AT)
        if IS_MASKED:
            key_position = key_at + index * key_step
            is_seen = is_key[None, :] & (key_position[None, :] <= position[:, None])
            if IS_WINDOWED:
                is_seen = is_seen & (key_position[None, :] > position[:, None] - window)
        keys, values = keys.to(ITEM), values.to(ITEM)
        highest, total, mixed = take_block(
            queries, keys, values, is_seen, highest, total, mixed, scale, cap, IS_MASKED, IS_CAPPED, IS_WIDENED
        )
    return highest, total, mixed


@triton.jit
def attend_runs(
    queries, position, highest, total, mixed, head_kv, slot_from, begin, end, key_at, key_step, slot_stride, scale, cap,
    there, columns, run_at, run_slot, kv_head,
    ITEM: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    IS_CAPPED: tl.constexpr, IS_WIDENED: tl.constexpr,
):  # fmt: skip
    """As `attend_keys` without a mask, the same blocks: those within one run of slots are copied by the tensor memory
    accelerator. `there`: the layer's KV as a tensor descriptor `[slots, 2 * kv_heads * head_dim]`.
    """
    first_run, runs = tl.load(columns + 9), tl.load(columns + 10)
    run, last_run = first_run - 1, first_run + runs - 1
    at, run_stop = begin, begin
    while at < end:
        while run_stop <= at:  # the last run ends behind all keys
            run += 1
            run_stop = end
            if run < last_run:
                run_stop = tl.load(run_at + run + 1)
        base = tl.load(run_slot + run) - tl.load(run_at + run)
        stop = begin + (tl.minimum(run_stop, end) - begin) // BLOCK_KEYS * BLOCK_KEYS
        for start in range(at, stop, BLOCK_KEYS):
            slot = (base + start).to(tl.int32)
            keys = there.load([slot, kv_head * HEAD_DIM])
            values = there.load([slot, (KV_HEADS + kv_head) * HEAD_DIM])
            highest, total, mixed = take_block(
                queries, keys, values, True, highest, total, mixed, scale, cap, False, IS_CAPPED, IS_WIDENED
            )
        at = tl.maximum(stop, at)
        crossed = tl.minimum(at + BLOCK_KEYS, end)  # the block that the run's end lies in
        highest, total, mixed = attend_keys(
            queries, position, highest, total, mixed, head_kv, slot_from, at, crossed, key_at, key_step, slot_stride,
            scale, cap, 0, ITEM, HEAD_DIM, HEAD_DIM, KV_HEADS * HEAD_DIM, BLOCK_KEYS, False, IS_CAPPED, False,
            IS_WIDENED,
        )  # fmt: skip
        at = crossed
    return highest, total, mixed


@triton.jit
def write_lines(out, lse, place, highest, total, mixed, is_line, is_item, dims, HEAD_DIM: tl.constexpr):
    """Write what the lines' sums come to at each one's `place`; a line that saw no key has zeros and -inf."""
    is_blind = total == 0.0
    divisor = tl.where(is_blind, 1.0, total)
    result = mixed / divisor[:, None]
    score = tl.where(is_blind, float("-inf"), (highest + tl.log2(divisor)) / LOG2E)
    tl.store(out + place[:, None] * HEAD_DIM + dims[None, :], result.to(out.dtype.element_ty), mask=is_item)
    tl.store(lse + place, score, mask=is_line)


@triton.jit(do_not_specialize=("out_stride", "lse_stride"), do_not_specialize_on_alignment=PLACES)
def attend_tiles(
    query, layer_kv, there, table, slot_at, slots, run_at, run_slot, tiles, out, lse,
    query_stride, slot_stride, out_stride, lse_stride, scale, cap, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    LINES: tl.constexpr, BLOCK_KEYS: tl.constexpr, SPLIT_KEYS: tl.constexpr, SPLIT_STEP: tl.constexpr,
    MOST_SPLITS: tl.constexpr, IS_BY_TILE: tl.constexpr, IS_BY_RUN: tl.constexpr,
    IS_CAPPED: tl.constexpr, IS_WINDOWED: tl.constexpr, IS_WIDENED: tl.constexpr, IS_BY_HEAD: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile, one KV head, one split of its keys: grid (tiles, KV heads, splits), or, IS_BY_HEAD, (KV heads, tiles,
    splits): what lies side by side is read at the same time. MOST_SPLITS 1: all its keys.

    IS_WIDENED: operands of products are made fp32 first, for the interpreter multiplies no bf16: the same numbers.
    `tiles` `[tiles, 2]` int64: row of the table, first query. `out_stride` and `lse_stride`: items between splits.
    IS_BY_TILE: `out` and `lse` have places for the queries of each tile, not for those of all rows. IS_BY_RUN: rows'
    keys lie in long runs of slots, those of `run_at` and `run_slot`, and `there` is a tensor descriptor of `layer_kv`.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = LINES // GROUP
    begin_dependent(IS_DEPENDENT)
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if IS_BY_HEAD:
        tile, kv_head = kv_head, tile
    row, first = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    columns = table + row * COLUMNS
    if tl.load(columns + 2) == 0:
        return  # padding
    begin, end = tile_keys(columns, first, window, QUERIES, IS_WINDOWED)
    if MOST_SPLITS > 1:
        keys = split_keys(columns, SPLIT_KEYS, SPLIT_STEP, MOST_SPLITS)
        split_begin = tl.load(columns + 7) + split * keys
        if (split > 0) & (split_begin >= tl.load(columns + 8)):
            return  # the row has fewer splits: nothing reads this one
        begin, end = tl.maximum(begin, split_begin), tl.minimum(end, split_begin + keys)
    lines = tl.arange(0, LINES)
    inner, head = first + lines // GROUP, kv_head * GROUP + lines % GROUP
    is_line = (lines < QUERIES * GROUP) & (inner < tl.load(columns + 2))
    query_at, query_step = tl.load(columns + 3), tl.load(columns + 4)
    key_at, key_step, dims = tl.load(columns + 5), tl.load(columns + 6), tl.arange(0, BLOCK_DIM)
    position = query_at + inner * query_step
    is_item = is_line[:, None] & (dims < HEAD_DIM)[None, :]
    at = (tl.load(columns) + inner) * query_stride + head * HEAD_DIM
    queries = tl.load(query + at[:, None] + dims[None, :], mask=is_item, other=0.0)
    if IS_WIDENED:
        queries = queries.to(tl.float32)
    # What the tile's first query sees, all of them see; a window hides other keys from each.
    lowest = query_at + first * query_step
    seen = tl.where(lowest >= key_at, (lowest - key_at) // key_step + 1, 0)
    whole = begin
    if not IS_WINDOWED:
        whole = begin + tl.maximum(tl.minimum(seen, end) - begin, 0) // BLOCK_KEYS * BLOCK_KEYS
    item: tl.constexpr = query.dtype.element_ty
    slot_from, head_kv = slots + tl.load(slot_at + row), layer_kv + kv_head * HEAD_DIM
    highest, total = tl.full([LINES], float("-inf"), tl.float32), tl.zeros([LINES], tl.float32)
    mixed = tl.zeros([LINES, BLOCK_DIM], tl.float32)
    if IS_BY_RUN:
        highest, total, mixed = attend_runs(
            queries, position, highest, total, mixed, head_kv, slot_from, begin, whole, key_at, key_step, slot_stride,
            scale, cap, there, columns, run_at, run_slot, kv_head, item, KV_HEADS, HEAD_DIM, BLOCK_KEYS, IS_CAPPED,
            IS_WIDENED,
        )  # fmt: skip
    elif not IS_WINDOWED:
        highest, total, mixed = attend_keys(
            queries, position, highest, total, mixed, head_kv, slot_from, begin, whole, key_at, key_step, slot_stride,
            scale, cap, window, item, HEAD_DIM, BLOCK_DIM, KV_HEADS * HEAD_DIM, BLOCK_KEYS, False, IS_CAPPED,
            IS_WINDOWED, IS_WIDENED,
        )  # fmt: skip
    highest, total, mixed = attend_keys(
        queries, position, highest, total, mixed, head_kv, slot_from, whole, end, key_at, key_step, slot_stride,
        scale, cap, window, item, HEAD_DIM, BLOCK_DIM, KV_HEADS * HEAD_DIM, BLOCK_KEYS, True, IS_CAPPED, IS_WINDOWED,
        IS_WIDENED,
    )  # fmt: skip
    if IS_BY_TILE:
        place = (tile * QUERIES + lines // GROUP) * HEADS + head
    else:
        place = (tl.load(columns + 1) + inner) * HEADS + head
    into, score_into = out + split * out_stride, lse + split * lse_stride
    write_lines(into, score_into, place, highest, total, mixed, is_line, is_item, dims, HEAD_DIM)


@triton.jit(do_not_specialize=("out_stride", "lse_stride"), do_not_specialize_on_alignment=PLACES)
def merge_splits(
    part_out, part_lse, table, tiles, out, lse, out_stride, lse_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, QUERIES: tl.constexpr,
    SPLIT_KEYS: tl.constexpr, SPLIT_STEP: tl.constexpr, MOST_SPLITS: tl.constexpr, IS_BY_TILE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one query and head, in their order: grid (tiles, queries of a tile, heads). IS_BY_TILE: as of
    `attend_tiles`, which wrote them.
    """
    begin_dependent(IS_DEPENDENT)
    tile, head = tl.program_id(0), tl.program_id(2)
    row, inner = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1) + tl.program_id(1)
    columns = table + row * COLUMNS
    if inner < tl.load(columns + 2):
        count = tl.load(columns + 8) - tl.load(columns + 7)
        keys = split_keys(columns, SPLIT_KEYS, SPLIT_STEP, MOST_SPLITS)
        place = (tl.load(columns + 1) + inner) * HEADS + head
        part = place
        if IS_BY_TILE:
            part = (tile * QUERIES + tl.program_id(1)) * HEADS + head
        dims = tl.arange(0, BLOCK_DIM)
        is_dim = dims < HEAD_DIM
        highest = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        mixed = tl.zeros([BLOCK_DIM], tl.float32)
        for split in range((count + keys - 1) // keys):
            score = tl.load(part_lse + split * lse_stride + part + tl.zeros([1], tl.int32))
            risen = tl.maximum(highest, score)
            base = tl.where(risen == float("-inf"), 0.0, risen)
            kept, share = tl.exp(highest - base), tl.exp(score - base)
            found = tl.load(part_out + split * out_stride + part * HEAD_DIM + dims, mask=is_dim, other=0.0)
            mixed = mixed * kept + found * share
            total = total * kept + share
            highest = risen
        is_blind = total == 0.0
        divisor = tl.where(is_blind, 1.0, total)
        result = mixed / divisor
        tl.store(out + place * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=is_dim)
        score = tl.where(is_blind, float("-inf"), highest + tl.log(divisor))
        tl.store(lse + place + tl.zeros([1], tl.int32), score)
