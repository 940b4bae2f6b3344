"""What the fast and the deterministic mode attend with: the kernel where there is one and it agrees with torch here."""

from collections.abc import Iterable
from itertools import product

import torch

from dunlin.engine.attention.base import PLAIN, Attention, AttentionKind, Result, ragged_rows, run_pass
from dunlin.engine.attention.block_kernel import KernelBlocks
from dunlin.engine.attention.block_tiles import TileBlocks
from dunlin.engine.attention.deterministic import DeterministicAttention
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.native.library import AVX512, LEVELS, KernelUnavailable, load_kernel
from dunlin.engine.attention.paged import PagedAttention

# (query heads, KV heads, head_dim): one for each way of computing that the kernel has.
SHAPES = ((4, 2, 64), (2, 1, 128), (6, 2, 80))
# (tokens, tokens before them): decode, a short row, a prompt.
ROWS = ((1, 300), (7, 90), (40, 0))
KINDS = (PLAIN, AttentionKind(window=100, cap=2.0, scale=0.2))
# The greatest difference of two numbers near 1. bf16: both round.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}


def choose_backend() -> tuple[str, str]:
    """The name of the backend, and what to tell of it."""
    try:
        kernel = load_kernel()
    except KernelUnavailable as error:
        return "torch", f"torch ({error})"
    if not agrees_with_torch(PagedAttention(kernel)):
        return "torch", "torch (the paged kernel gives other results on this processor)"
    return "paged", f"paged kernel ({LEVELS[kernel.level]})"


def choose_deterministic() -> tuple[Attention, str]:
    """The deterministic mode's backend, and what to tell of it."""
    try:
        kernel = load_kernel()
    except KernelUnavailable as error:
        return DeterministicAttention(TileBlocks()), f"torch ({error})"
    found = DeterministicAttention(KernelBlocks(kernel))
    if not agrees_with_torch(found, [torch.float32]):
        return DeterministicAttention(TileBlocks()), "torch (the kernel gives other results on this processor)"
    return found, f"a kernel ({LEVELS[min(kernel.level, AVX512)]})"


def agrees_with_torch(backend: Attention, dtypes: Iterable[torch.dtype] = TOLERANCE) -> bool:
    """Compute a ragged batch over scattered slots with both."""
    return all(_agrees(backend, *case) for case in product(SHAPES, dtypes, KINDS))


def _agrees(backend: Attention, shape: tuple[int, int, int], dtype: torch.dtype, kind: AttentionKind) -> bool:
    ours, theirs = (_compute(each, shape, dtype, kind) for each in (backend, FusedAttention()))
    return all(torch.allclose(a.float(), b.float(), atol=TOLERANCE[dtype]) for a, b in zip(ours, theirs, strict=True))


def _compute(backend: Attention, shape: tuple[int, int, int], dtype: torch.dtype, kind: AttentionKind) -> Result:
    (heads, kv_heads, head_dim), random = shape, torch.Generator().manual_seed(1)
    tokens = sum(count for count, _ in ROWS)
    query = torch.randn(tokens, heads, head_dim, generator=random).to(dtype)
    layer_kv = torch.randn(sum(map(sum, ROWS)), 2, kv_heads, head_dim, generator=random).to(dtype)
    rows = ragged_rows(ROWS, torch.randperm(len(layer_kv), generator=random).tolist())
    return run_pass(backend.plan(rows, kind).start(query, layer_kv), lambda: None)
