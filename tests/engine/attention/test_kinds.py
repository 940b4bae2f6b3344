"""Every backend: windows, caps and scales of scores, also where keys lie at several places and rows leave."""

import pytest
import torch

from dunlin.engine.attention import fused, paged
from dunlin.engine.attention.base import AttentionKind, BatchRow, PartialResult, local_row, run_pass
from dunlin.engine.attention.native.library import KernelUnavailable, load_kernel
from dunlin.engine.attention.paged import PagedAttention
from dunlin.engine.attention.spans import RoomSpan, slot_run, slot_span
from tests.engine.attention.reference import BACKENDS, backend_named, close, make_kv, make_query, reference

KINDS = [
    AttentionKind(window=1),
    AttentionKind(window=50),
    AttentionKind(window=129),
    AttentionKind(cap=3.0),
    AttentionKind(window=70, cap=2.0, scale=0.4),
]
# (tokens, tokens before them): decode rows, prompts and chunks beside the borders of windows, pieces and blocks.
ROWS = [(1, 0), (1, 49), (1, 50), (1, 600), (70, 0), (33, 100), (5, 59), (300, 240), (3, 700)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "QUERY_BLOCK", 32)
    monkeypatch.setattr(fused, "KEY_BLOCK", 128)
    monkeypatch.setattr(paged, "QUERY_BLOCK", 32)
    monkeypatch.setattr(paged, "PIECE_PAIRS", 1 << 12)
    monkeypatch.setattr(paged, "LEAST_QUERIES", 8)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_ragged_rows_agree_with_the_reference(name: str, kind: AttentionKind) -> None:
    kv, query = make_kv(3000, 2), make_query(sum(tokens for tokens, _ in ROWS), 6)
    rows, wanted, at, first = [], [], 0, 0
    for tokens, before in ROWS:
        length = tokens + before
        slots = first + torch.randperm(length, generator=torch.Generator().manual_seed(first))
        rows.append(local_row(at, at + tokens, slot_span(range(length), slots.tolist())))
        wanted.append(reference(query[at : at + tokens], kv[slots], range(before, length), kind=kind))
        at, first = at + tokens, first + length
    ours = run_pass(backend_named(name).plan(rows, kind).start(query, kv), lambda: None)
    assert close(ours, (torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("tokens", [1, 60])
def test_keys_elsewhere_count_by_their_positions(name: str, kind: AttentionKind, tokens: int) -> None:
    """Blocks at a peer that answers, keys that travel, and the rest here: some are wholly before the window."""
    backend, kv, query, length = backend_named(name), make_kv(1100, 2), make_query(tokens, 6), 1100
    queries, there, room = range(length - tokens, length), range(512), range(512, 800)
    asked = backend.plan([BatchRow(0, tokens, queries, (slot_run(there, 0),))], kind).start(query, kv)
    out, lse = run_pass(asked, lambda: None)
    # The deterministic mode merges whole blocks: keys 512 to 1024 are one.
    here = range(800, length)
    row = BatchRow(0, tokens, queries, (slot_run(here, 800),), (there, room))
    started = backend.plan([row], kind).start(query, kv)
    started.add(0, PartialResult(there, out.float(), lse))
    started.add(0, RoomSpan(room, kv[512:800].clone()))
    ours = run_pass(started, lambda: None)
    assert close(ours, reference(query, kv, queries, kind=kind))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_that_comes_back_has_the_bits_of_one_that_stays(name: str) -> None:
    backend, kind, kv, query = backend_named(name), KINDS[-1], make_kv(700, 2), make_query(90, 6)
    rows = [local_row(0, 90, 0, 700)]
    whole = run_pass(backend.plan(rows, kind).start(query, kv), lambda: None)
    for pieces in range(1, 4):
        started = backend.plan(rows, kind).start(query, kv)
        for _ in range(pieces):
            started.advance()
        state = started.leave(0)
        again = run_pass(backend.plan(rows, kind).start(query, kv, {0: state}), lambda: None)
        assert all(torch.equal(a, b) for a, b in zip(again, whole, strict=True))


@pytest.mark.parametrize("head_dim", [32, 64, 80, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_way_of_the_kernel(head_dim: int, dtype: torch.dtype) -> None:
    try:
        kernel = load_kernel()
    except KernelUnavailable as error:
        pytest.skip(str(error))
    kind, kv = AttentionKind(window=90, cap=2.0, scale=0.1), make_kv(800, 2, head_dim=head_dim).to(dtype)
    query = make_query(41, 8, head_dim).to(dtype)
    rows = [local_row(0, 1, 0, 800), local_row(1, 41, 0, 130)]
    wanted = [
        reference(query[:1], kv, range(799, 800), kind=kind),
        reference(query[1:], kv[:130], range(90, 130), kind=kind),
    ]
    exact = torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])
    for level in range(kernel.level + 1):
        way = PagedAttention(type(kernel)(kernel.function, level))
        out, lse = run_pass(way.plan(rows, kind).start(query, kv), lambda: None)
        atol = 1e-5 if dtype is torch.float32 else 0.02
        assert torch.allclose(out.double(), exact[0], atol=atol)
        assert torch.allclose(lse.double(), exact[1], atol=atol)
