"""The fused backend: long contexts in pieces, and bf16 with an exact lse."""

import pytest
import torch

from dunlin.engine.attention import fused
from dunlin.engine.attention.base import BatchRow, KvLocation
from tests.engine.attention.reference import close, make_kv, make_query, reference


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


def test_rows_come_out_packed_as_they_went_in() -> None:
    kv, query = make_kv(300, 2), make_query(12, 6)
    rows = [BatchRow(0, 1, KvLocation(200, 100, None)), BatchRow(1, 12, KvLocation(40, 30, None))]
    out, lse = fused.plan(rows)(query, kv, lambda: None)
    first, second = reference(query[:1], kv[100:300], before=199), reference(query[1:], kv[30:70], before=29)
    assert close((out, lse), (torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])))
