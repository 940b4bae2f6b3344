"""Every attention backend against plain softmax attention, on ragged batches."""

import pytest
import torch

from dunlin.engine.attention.base import BatchRow, KvLocation
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from tests.engine.attention.reference import close, make_kv, make_query, reference

GROUPS = [(4, 4), (6, 2), (8, 1), (40, 2)]


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


def test_a_deterministic_row_ignores_garbage_in_slots_it_does_not_own() -> None:
    kv, query = make_kv(300, 2), make_query(1, 6)
    kv[100:] = float("nan")
    kv[200:270] = make_kv(70, 2)
    row = BatchRow(0, 1, KvLocation(70, 0, torch.arange(200, 270)))
    ours = ATTENTION_BACKENDS["deterministic"]([row])(query, kv, lambda: None)
    assert close(ours, reference(query, kv[200:270], before=69))
