"""Every attention backend against plain softmax attention, on ragged batches."""

import pytest
import torch

from dunlin.engine.attention.base import local_row
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from dunlin.engine.attention.spans import slot_span
from tests.engine.attention.reference import attend, backend_named, close, make_kv, make_query, reference

GROUPS = [(4, 4), (6, 2), (8, 1), (40, 2)]


@pytest.mark.parametrize("backend", sorted(ATTENTION_BACKENDS))
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPS)
@pytest.mark.parametrize("scattered", [False, True])
def test_ragged_rows_agree_with_the_reference(backend: str, heads: int, kv_heads: int, scattered: bool) -> None:
    kv = make_kv(3000, kv_heads)
    # (tokens in the row, tokens before it): decode rows, a whole prompt, chunks with a past; block borders at 64, 512.
    shapes = [(1, 0), (1, 63), (1, 64), (70, 0), (33, 100), (1, 127), (5, 59), (1, 511), (1, 512), (300, 240)]
    rows, wanted, start, first = [], [], 0, 0
    query = make_query(sum(tokens for tokens, _ in shapes), heads)
    for tokens, before in shapes:
        length = tokens + before
        slots = torch.arange(first, first + length)
        if scattered:
            slots = slots[torch.randperm(length, generator=torch.Generator().manual_seed(first))]
        rows.append(local_row(start, start + tokens, slot_span(range(length), slots.tolist())))
        wanted.append(reference(query[start : start + tokens], kv[slots], range(before, length)))
        start, first = start + tokens, first + length
    ours = attend(backend_named(backend), rows, query, kv)
    assert close(ours, (torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])))


@pytest.mark.parametrize("backend", sorted(ATTENTION_BACKENDS))
def test_a_row_ignores_garbage_in_slots_it_does_not_own(backend: str) -> None:
    kv, query = make_kv(300, 2), make_query(4, 6)
    kv[100:] = float("nan")
    kv[200:270] = make_kv(70, 2)
    rows = [local_row(0, 1, 200, 70), local_row(1, 4, 200, 70)]
    wanted = [reference(query[:1], kv[200:270], range(69, 70)), reference(query[1:], kv[200:270], range(67, 70))]
    ours = attend(backend_named(backend), rows, query, kv)
    assert close(ours, (torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])))
