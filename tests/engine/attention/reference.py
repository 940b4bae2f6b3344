"""Plain softmax attention in float64, and the KV and queries to compare with it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import PLAIN, Attention, AttentionKind, BatchRow, Result, run_pass
from dunlin.engine.attention.block_tiles import TileBlocks
from dunlin.engine.attention.deterministic import DeterministicAttention
from dunlin.engine.attention.native.library import KernelUnavailable, load_kernel
from dunlin.engine.attention.registry import ATTENTION_BACKENDS

HEAD_DIM = 16
BY_TORCH = "deterministic by torch"
"""The deterministic mode as it computes without a kernel."""
BACKENDS = [*sorted(ATTENTION_BACKENDS), BY_TORCH]


def make_kv(slots: int, kv_heads: int, seed: int = 0, head_dim: int = HEAD_DIM) -> Tensor:
    return torch.randn(slots, 2, kv_heads, head_dim, generator=torch.Generator().manual_seed(seed))


def make_query(tokens: int, heads: int, head_dim: int = HEAD_DIM) -> Tensor:
    return torch.randn(tokens, heads, head_dim, generator=torch.Generator().manual_seed(9))


def reference(
    query: Tensor, keys_values: Tensor, queries: range, keys: range | None = None, kind: AttentionKind = PLAIN
) -> tuple[Tensor, Tensor]:
    """In float64, with the matrix of scores written out. The keys are at positions from 0 unless said."""
    heads, head_dim = query.shape[1:]
    spread = keys_values.double().repeat_interleave(heads // keys_values.shape[2], dim=2)
    scores = torch.einsum("thd,shd->hts", query.double(), spread[:, 0]) * (kind.scale or head_dim**-0.5)
    if kind.cap:
        scores = kind.cap * torch.tanh(scores / kind.cap)
    places = range(len(keys_values)) if keys is None else keys
    distance = torch.tensor(queries)[:, None] - torch.tensor(places)[None]
    unseen = (distance < 0) | (distance >= (kind.window or len(keys_values) + queries[-1]))
    scores = scores.masked_fill(unseen, float("-inf"))
    out = torch.einsum("hts,shd->thd", scores.softmax(-1).nan_to_num(0.0), spread[:, 1])
    return out, scores.logsumexp(-1).t()


def close(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], atol: float = 2e-6) -> bool:
    return all(torch.allclose(a.double(), b.double(), atol=atol, rtol=1e-5) for a, b in zip(ours, theirs, strict=True))


def backend_named(name: str) -> Attention:
    """The backend; skips the test where it needs a kernel that was not built."""
    if name == "paged":
        try:
            load_kernel()
        except KernelUnavailable as error:
            pytest.skip(str(error))
    return DeterministicAttention(TileBlocks()) if name == BY_TORCH else ATTENTION_BACKENDS[name]()


def is_deterministic(name: str) -> bool:
    """Whether a backend promises bits."""
    return name in ("deterministic", BY_TORCH)


def attend(backend: Attention, rows: Sequence[BatchRow], query: Tensor, layer_kv: Tensor) -> Result:
    return run_pass(backend.plan(rows).start(query, layer_kv), lambda: None)
