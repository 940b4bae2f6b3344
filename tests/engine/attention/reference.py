"""Plain softmax attention in float64, and the KV and queries to compare with it."""

import torch
from torch import Tensor

HEAD_DIM = 16


def make_kv(slots: int, kv_heads: int, seed: int = 0) -> Tensor:
    return torch.randn(slots, 2, kv_heads, HEAD_DIM, generator=torch.Generator().manual_seed(seed))


def make_query(tokens: int, heads: int) -> Tensor:
    return torch.randn(tokens, heads, HEAD_DIM, generator=torch.Generator().manual_seed(9))


def reference(query: Tensor, keys_values: Tensor, before: int) -> tuple[Tensor, Tensor]:
    """In float64, with the matrix of scores written out."""
    tokens, heads, _ = query.shape
    spread = keys_values.double().repeat_interleave(heads // keys_values.shape[2], dim=2)
    scores = torch.einsum("thd,shd->hts", query.double(), spread[:, 0]) * HEAD_DIM**-0.5
    later = torch.arange(len(keys_values))[None] > torch.arange(before, before + tokens)[:, None]
    scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("hts,shd->thd", scores.softmax(-1), spread[:, 1]), scores.logsumexp(-1).t()


def close(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], atol: float = 2e-6) -> bool:
    return all(torch.allclose(a.double(), b.double(), atol=atol, rtol=1e-5) for a, b in zip(ours, theirs, strict=True))
