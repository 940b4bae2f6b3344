"""Both backends against plain softmax attention; (out, lse) of parts merge into the whole."""

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention import fused
from dunlin.engine.attention.base import BatchRow, KvLocation, merge_partial_attention
from dunlin.engine.attention.fused import partial
from dunlin.engine.attention.registry import ATTENTION_BACKENDS

HEAD_DIM = 16
GROUPS = [(4, 4), (6, 2), (8, 1), (40, 2)]


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


@pytest.mark.parametrize("backend", sorted(ATTENTION_BACKENDS))
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPS)
@pytest.mark.parametrize("scattered", [False, True])
def test_ragged_rows_agree_with_the_reference(backend: str, heads: int, kv_heads: int, scattered: bool) -> None:
    kv = make_kv(1200, kv_heads)
    # (tokens in the row, tokens before it): decode rows, a whole prompt, chunks with a past; block borders at 64.
    shapes = [(1, 0), (1, 63), (1, 64), (70, 0), (33, 100), (1, 127), (5, 59)]
    rows, wanted, start, first = [], [], 0, 0
    query = make_query(sum(tokens for tokens, _ in shapes), heads)
    for tokens, before in shapes:
        length = tokens + before
        slots = torch.arange(first, first + length)
        if scattered:
            slots = slots[torch.randperm(length, generator=torch.Generator().manual_seed(first))]
        rows.append(BatchRow(start, start + tokens, KvLocation(length, first, slots if scattered else None)))
        wanted.append(reference(query[start : start + tokens], kv[slots], before))
        start, first = start + tokens, first + length
    passed: list[int] = []
    ours = ATTENTION_BACKENDS[backend](rows)(query, kv, lambda: passed.append(1))
    assert close(ours, (torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])))


@pytest.mark.parametrize("cut", [1, 64, 99])
def test_parts_merge_into_the_whole(cut: int) -> None:
    kv, query = make_kv(100, 2), make_query(3, 6)
    merged = merge_partial_attention(partial(query, kv[:cut]), partial(query, kv[cut:]))
    whole = partial(query, kv)
    assert close(merged, whole)
    assert close(whole, reference(query, kv, before=len(kv)))
    assert not close(partial(query, kv[:cut]), whole, atol=1e-3)


def test_long_pasts_are_computed_in_pieces_with_safepoints_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "PIECE_PAIRS", 256)
    kv, query = make_kv(1000, 2), make_query(10, 6)
    passed: list[int] = []
    ours = fused.plan([BatchRow(0, 10, KvLocation(1000, 0, None))])(query, kv, lambda: passed.append(1))
    assert close(ours, reference(query, kv, before=990))
    assert len(passed) == 3, "990 keys in pieces of 256"


def test_bf16_keeps_its_dtype_and_an_exact_lse() -> None:
    kv, query = make_kv(200, 2).bfloat16(), make_query(20, 6).bfloat16()
    out, lse = fused.plan([BatchRow(0, 20, KvLocation(200, 0, None))])(query, kv, lambda: None)
    wanted = reference(query, kv, before=180)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert torch.allclose(out.double(), wanted[0], atol=0.02)
    assert torch.allclose(lse.double(), wanted[1], atol=0.02)


def test_a_deterministic_row_ignores_garbage_in_slots_it_does_not_own() -> None:
    kv, query = make_kv(300, 2), make_query(1, 6)
    kv[100:] = float("nan")
    kv[200:270] = make_kv(70, 2)
    row = BatchRow(0, 1, KvLocation(70, 0, torch.arange(200, 270)))
    ours = ATTENTION_BACKENDS["deterministic"]([row])(query, kv, lambda: None)
    assert close(ours, reference(query, kv[200:270], before=69))
