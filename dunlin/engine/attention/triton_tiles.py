"""Tiles of queries on a GPU: what the kernels read of the rows that they are of, and their launch."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from dunlin.engine.attention import triton_kernels as kernels
from dunlin.engine.attention.base import AttentionKind
from dunlin.engine.attention.hopper import has_tensor_memory, launch_options
from dunlin.engine.attention.prompt_kernel import PlannedPrompts, PromptKernel
from dunlin.engine.attention.tile_sizes import SHAPED_DIM, TileShape, TileSizes, block_dim

LONG_RUN = 512
"""Keys of a run of slots, at least on average, whose blocks are copied as such."""


IS_INTERPRETED: bool = triton.knobs.runtime.interpret


@dataclass(frozen=True, slots=True)
class TileLauncher:
    """Launches the kernels for layers of one kind. `prompts`: what computes wide tiles instead, where it can."""

    kind: AttentionKind
    sizes: TileSizes
    prompts: PromptKernel | None = None


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """What the kernels read of some cells, where they read it. `narrow` and `wide`: tiles; `splits`: of the narrow ones
    at most. `runs`: of slots (where each begins, its first slot), if those of the wide tiles' rows are long. `prompts`:
    computes the rows of the wide tiles instead, where nothing of them is merged in fp32.
    """

    table: Tensor
    slot_at: Tensor
    slots: Tensor
    narrow: Tensor
    wide: Tensor
    splits: int
    runs: tuple[Tensor, Tensor] | None = None
    prompts: PlannedPrompts | None = None


def expand(table: Tensor, run_at: Tensor, run_slot: Tensor, slot_at: Tensor, slots: Tensor, most: int) -> None:
    """Write the slots of all rows' keys, of which a row has at most `most`."""
    block = 1024
    grid = (len(table), triton.cdiv(most, block))
    kernels.expand_slots[grid](table, run_at, run_slot, slot_at, slots, BLOCK=block)


def has_long_runs(table: Tensor, wide: Tensor) -> bool:
    """Whether the keys of the rows of wide tiles lie in runs of slots that the tensor memory accelerator pays for."""
    rows = wide[wide[:, 1] == 0, 0]
    return len(rows) > 0 and int(table[rows, 8].sum()) >= LONG_RUN * int(table[rows, 10].sum())


def find_tiles(table: Tensor, narrow_queries: int, wide_queries: int) -> tuple[Tensor, Tensor]:
    """(narrow, wide) tiles `[tiles, 2]`: row, first query. A row of no more queries than a narrow tile's is one."""
    tokens = table[:, 2]
    is_narrow = tokens <= narrow_queries
    found = is_narrow.nonzero()[:, 0]
    narrow = torch.stack((found, torch.zeros_like(found)), 1)
    rows = (~is_narrow).nonzero()[:, 0]
    counts = -(-tokens[rows] // wide_queries)
    starts = counts.cumsum(0) - counts
    inside = torch.arange(int(counts.sum())) - starts.repeat_interleave(counts)
    return narrow, torch.stack((rows.repeat_interleave(counts), inside * wide_queries), 1)


def launch(
    launcher: TileLauncher, there: DeviceTable, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Compute the tiles: the narrow ones in splits where a row has several."""
    sizes = launcher.sizes
    heads, head_dim = query.shape[1:]
    narrow, wide = sizes.shapes(heads, layer_kv.shape[2], head_dim, query.dtype)
    if there.prompts is not None and out.dtype is query.dtype:
        there.prompts.attend(query, layer_kv, out, lse)
    elif len(there.wide):
        runs = there.runs if _can_go_by_run(launcher.kind, query, layer_kv) else None
        _attend(there, there.wide, query, layer_kv, out, lse, launcher, wide, runs=runs)
    if not len(there.narrow):
        return
    if there.splits <= 1:
        _attend(there, there.narrow, query, layer_kv, out, lse, launcher, narrow)
        return
    queries = narrow.lines // (heads // layer_kv.shape[2])
    # Splits of few decode rows beside a long prompt need no places for the prompt.
    places = min(len(out), len(there.narrow) * queries)
    part_out = query.new_empty((there.splits, places, *out.shape[1:]), dtype=torch.float32)
    part_lse = part_out.new_empty(part_out.shape[:3])
    is_by_tile = places < len(out)
    _attend(there, there.narrow, query, layer_kv, part_out, part_lse, launcher, narrow, there.splits, is_by_tile)
    kernels.merge_splits[(len(there.narrow), queries, heads)](
        part_out, part_lse, there.table, there.narrow, out, lse, part_out.stride(0), part_lse.stride(0),
        HEADS=heads, HEAD_DIM=head_dim, BLOCK_DIM=block_dim(head_dim), QUERIES=queries,
        SPLIT_KEYS=sizes.split_keys, SPLIT_STEP=sizes.narrow.keys, MOST_SPLITS=sizes.most_splits,
        IS_BY_TILE=is_by_tile, num_warps=1, **launch_options(),
    )  # fmt: skip


def _attend(
    there: DeviceTable, tiles: Tensor, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor,
    launcher: TileLauncher, shape: TileShape, splits: int = 1, is_by_tile: bool = False,
    runs: tuple[Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    heads, head_dim = query.shape[1:]
    kv_heads = layer_kv.shape[2]
    kind, sizes, is_split = launcher.kind, launcher.sizes, splits > 1
    is_by_head = tiles is there.narrow
    grid = (kv_heads, len(tiles)) if is_by_head else (len(tiles), kv_heads)
    described = layer_kv if runs is None else _described(layer_kv, shape.keys)
    run_at, run_slot = runs or (there.slots, there.slots)
    kernels.attend_tiles[(*grid, splits)](
        query, layer_kv, described, there.table, there.slot_at, there.slots, run_at, run_slot, tiles, out, lse,
        query.stride(0), layer_kv.stride(0), out.stride(0) if is_split else 0, lse.stride(0) if is_split else 0,
        kind.scale_of(head_dim), kind.cap, kind.window,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_DIM=block_dim(head_dim), LINES=shape.lines,
        BLOCK_KEYS=shape.keys, SPLIT_KEYS=sizes.split_keys, SPLIT_STEP=sizes.narrow.keys,
        MOST_SPLITS=sizes.most_splits if is_split else 1, IS_BY_TILE=is_by_tile, IS_BY_RUN=runs is not None,
        IS_CAPPED=bool(kind.cap), IS_WINDOWED=bool(kind.window),
        IS_WIDENED=IS_INTERPRETED and query.dtype is torch.bfloat16, IS_BY_HEAD=is_by_head,
        num_warps=shape.warps, num_stages=shape.stages, **launch_options(),
    )  # fmt: skip


def _can_go_by_run(kind: AttentionKind, query: Tensor, layer_kv: Tensor) -> bool:
    """Whether the tensor memory accelerator can copy blocks of keys, which all queries of a tile see."""
    head_dim = query.shape[2]
    is_block = head_dim == block_dim(head_dim) and head_dim <= SHAPED_DIM  # shared memory holds no wider ones
    is_whole = query.element_size() == 2 and layer_kv.dtype is query.dtype
    return has_tensor_memory() and not kind.window and is_whole and is_block


def _described(layer_kv: Tensor, keys: int) -> TensorDescriptor:
    """A layer's KV in blocks of so many keys, or values, of one head."""
    slots, _, kv_heads, head_dim = layer_kv.shape
    shape = [slots, 2 * kv_heads * head_dim]
    return TensorDescriptor(layer_kv, shape, [layer_kv.stride(0), 1], [keys, head_dim])
