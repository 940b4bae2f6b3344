"""How much of a GPU's memory is there for one engine: what it needs beside weights and KV, and what others left free.

Pure but for `free_room`, which looks and waits.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

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
ATTENTION_SPLITS = 16
"""Parts of a decode row's keys whose results are there at once."""
LONG_STEP_TOKENS, MLP_TOKENS, RECORDED_TOKENS = 1 << 15, 4096, 2048
"""Tokens of a long prompt's step, of a block of its MLP, and of the largest recorded step."""


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
    what attention gives of all tokens, gates of a block of the MLP; and those of the largest recorded step, which has a
    pool of its own. Attention's partial results are fp32.
    """
    width = max(config.intermediate, config.experts.width * config.experts.active if config.experts else 0)
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    token = 3 * config.hidden + attention
    layer = (max(step.tokens, LONG_STEP_TOKENS) * token + MLP_TOKENS * 3 * width) * item_bytes
    recorded = RECORDED_TOKENS * (token + 3 * width) * item_bytes
    partial = step.rows * config.heads * ATTENTION_SPLITS * (config.head_dim + 1) * 4
    logits = step.rows * config.vocab * LOGIT_BYTES
    return layer + recorded + partial + logits + library_bytes


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
