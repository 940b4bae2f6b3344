"""Attention over keys and values in fp8: as if they had been rounded and then given in the queries' type."""

import importlib.util

import pytest
import torch

from dunlin.engine.attention.base import PLAIN, Attention, AttentionKind, BatchRow, LocalRows, local_row, run_pass
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.spans import RoomSpan, slot_run, slot_span
from tests.engine.attention.reference import make_kv, make_query, reference

FP8 = torch.float8_e4m3fn
ROWS = [(1, 0), (1, 31), (1, 150), (3, 40), (35, 21)]
BACKENDS = ["torch", "triton"] if importlib.util.find_spec("triton") else ["torch"]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}


def backend_named(name: str) -> Attention:
    if name == "torch":
        return FusedAttention()
    from dunlin.engine.attention.triton_paged import TritonAttention

    return TritonAttention()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", [PLAIN, AttentionKind(window=30, cap=5.0, scale=0.3)])
@pytest.mark.parametrize("name", BACKENDS)
def test_ragged_rows_over_scattered_slots(name: str, kind: AttentionKind, dtype: torch.dtype) -> None:
    query = make_query(sum(tokens for tokens, _ in ROWS), 6).to(dtype)
    kv = make_kv(sum(map(sum, ROWS)), 2).to(FP8)
    order = torch.randperm(len(kv), generator=torch.Generator().manual_seed(3)).tolist()
    rows, wanted, at, first = [], [], 0, 0
    for tokens, before in ROWS:
        length = tokens + before
        slots = order[first : first + length]
        rows.append(local_row(at, at + tokens, slot_span(range(length), slots)))
        wanted.append(reference(query[at : at + tokens], kv[slots], range(before, length), kind=kind)[0])
        at, first = at + tokens, first + length
    out, _ = run_pass(backend_named(name).plan(rows, kind).start(query, kv), lambda: None)
    assert out.dtype is dtype
    assert torch.allclose(out.double(), torch.cat(wanted), atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", BACKENDS)
def test_decode_rows_as_columns(name: str) -> None:
    lengths, query, kv = [1, 700, 90], make_query(3, 4), make_kv(800, 2).to(FP8)
    spans = [slot_run(range(length), first) for length, first in zip(lengths, (0, 1, 701), strict=True)]
    rows = LocalRows([0, 1, 2], [1, 2, 3], lengths, [(span.run_at, span.run_slot) for span in spans])
    out, _ = run_pass(backend_named(name).plan(rows).start(query, kv), lambda: None)
    for at, span in enumerate(spans):
        length = lengths[at]
        wanted, _ = reference(query[at : at + 1], kv[span.slots()], range(length - 1, length))
        assert torch.allclose(out[at : at + 1].double(), wanted, atol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_keys_that_arrive_in_a_room(name: str) -> None:
    query, kv = make_query(20, 4), make_kv(60, 2).to(FP8)
    row = BatchRow(0, 20, range(40, 60), (slot_run(range(30, 60), 30),), (range(30),))
    going = backend_named(name).plan([row]).start(query, kv)
    going.add(0, RoomSpan(range(30), kv[:30].clone()))
    out, _ = run_pass(going, lambda: None)
    wanted, _ = reference(query, kv, range(40, 60))
    assert torch.allclose(out.double(), wanted, atol=1e-5)
