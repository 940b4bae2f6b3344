"""How much of a GPU's memory is there for one engine: what it needs beside weights and KV, and what others left free.

Pure but for `free_room`, which looks and waits.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dunlin.engine.attention.tile_sizes import SIZES
from dunlin.engine.decoder.gpu.recorded_sizes import DECODE_ROWS, DECODE_SPLITS, MIXED_TOKENS, at_least
from dunlin.model.config import ModelConfig
from dunlin.model.memory_plan import MemoryLimit, ModelSizes, kv_left, size_text
from dunlin.runtime.memory import FREE_WAIT_S, look_until

CUDA_CONTEXT_BYTES = 512 << 20
"""Of a process on a GPU before its first tensor: the context, and the modules of torch's libraries. Memory that is free
is counted after it was made, so it is taken off the share alone. Estimated, not measured.
"""
CUDA_LIBRARY_BYTES = 2 << 30
"""cuBLAS's work spaces (32 MiB a stream), Triton's kernels, some thousand recorded graphs, and what torch's allocator
cannot use of its blocks. On an H200 making them for an 8B took 2.1 GiB, with what the largest recorded step computes:
docs/measurements/2026-11-27-h200.md.
"""
LOGIT_BYTES = 64
"""Of one (row, token of the vocabulary) where every row is sampled with top_p: fp32 logits and their adjusted copy, and
seven float64 or int64 tensors of scores, shares, their order, and what sorting needs.
"""
LONG_STEP_TOKENS, MLP_TOKENS = 1 << 15, 4096
"""Tokens of a long prompt's step, and of a block of its MLP."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """`read()` gives a device's free and whole memory, bytes, once this process has its context there."""

    read: Callable[[], tuple[int, int]]
    context_bytes: int = 0
    library_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: its tokens, and its rows whose next token is chosen."""

    tokens: int
    rows: int


def work_space_bytes(config: ModelConfig, item_bytes: int, step: StepLimits, library_bytes: int = 0) -> int:
    """What the largest step takes beside weights and KV, and what libraries keep.

    A layer's tensors are counted as if they were there at once: hidden states three times, queries, keys, values and
    what attention gives of all tokens, gates of a block of the MLP. To them come the partial results of attention or,
    after the last layer, the logits: whichever is more. What recorded steps take they have in a pool of their own.
    """
    width = max(config.intermediate, config.experts.width * config.experts.active if config.experts else 0)
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    token, gates = 3 * config.hidden + attention, 3 * width
    tokens, splits = max(step.tokens, LONG_STEP_TOKENS), SIZES.splits_within(config.max_positions)
    layer = (tokens * token + MLP_TOKENS * gates) * item_bytes
    partial = _partial_bytes(config, min(tokens, step.rows * _tile_queries(config)), splits)
    logits = step.rows * config.vocab * LOGIT_BYTES
    rows, most = at_least(DECODE_ROWS, step.rows) or DECODE_ROWS[-1], at_least(DECODE_SPLITS, splits) or splits
    decode = rows * (token + gates) * item_bytes + _partial_bytes(config, rows, most)
    recorded = max(MIXED_TOKENS[-1] * (token + gates) * item_bytes, decode)
    return layer + max(partial, logits) + recorded + library_bytes


def _tile_queries(config: ModelConfig) -> int:
    """Places for partial results that a decode row has beside other rows: those of its tile's queries."""
    narrow, _ = SIZES.shapes(config.heads, config.kv_heads, config.head_dim, torch.bfloat16)
    return narrow.lines // (config.heads // config.kv_heads)


def _partial_bytes(config: ModelConfig, places: int, splits: int) -> int:
    """Results of so many splits of the keys, with their sums, in fp32."""
    return places * splits * config.heads * (config.head_dim + 1) * 4


def share_bytes(total: int, share: float, context_bytes: int) -> int:
    """What an engine that may use a share of the whole memory has for weights, KV and work space."""
    return int(total * share) - context_bytes


def shared_kv_bytes(total: int, free: int, share: float, work_bytes: int, context_bytes: int, sizes: ModelSizes) -> int:
    """KV of an engine that may use a share of a GPU of which so much is free.

    :raises TooLittleMemory: less than the least KV is left.
    """
    budget = share_bytes(total, share, context_bytes)
    what = f"a share of {share:g} of the GPU's {size_text(total)}, without the {size_text(context_bytes)} of a process"
    remedy = "raise --gpu-memory-utilization, put fewer instances on this GPU"
    if free < budget:
        what, remedy = f"free of the GPU's {size_text(total)}", "end what else uses this GPU (nvidia-smi lists it)"
    remedy += ", or lower --max-running and --budget-tokens, take --dtype bf16 or --kv-dtype fp8, or a smaller model"
    return kv_left(MemoryLimit(min(budget, free), what, remedy, work_bytes), sizes)


def free_room(
    read: Callable[[], tuple[int, int]],
    wanted: Callable[[int], int],
    safepoint: Callable[[], None],
    wait_s: float = FREE_WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, int]:
    """Free and whole memory once as much is free as is `wanted` of the whole, or after `wait_s`: the driver takes
    a moment to free the memory of a process that has just ended.
    """
    return look_until(read, lambda found: found[0] >= wanted(found[1]), wait_s, safepoint, sleep)
