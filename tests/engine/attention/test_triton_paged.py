"""The GPU's kernels by Triton's interpreter, against attention written out: shapes, slots in any order, splits."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import (
    PLAIN,
    AttentionKind,
    BatchRow,
    LocalRows,
    PartialResult,
    Result,
    local_row,
    run_pass,
)
from dunlin.engine.attention.spans import RoomSpan, slot_run, slot_span
from dunlin.engine.attention.tile_sizes import TileShape, TileSizes
from tests.engine.attention.reference import close, make_kv, make_query, reference

triton_paged = pytest.importorskip("dunlin.engine.attention.triton_paged", exc_type=ModuleNotFoundError)
triton_tiles = pytest.importorskip("dunlin.engine.attention.triton_tiles", exc_type=ModuleNotFoundError)
TritonAttention = triton_paged.TritonAttention

# (tokens, tokens before them): tiles end at 16 and 32 lines, blocks and splits at 32 keys.
ROWS = [(1, 0), (1, 31), (1, 32), (1, 150), (3, 40), (9, 0), (35, 21)]
SMALL = TileSizes(
    TileShape(32, 32, 4, 2), TileShape(32, 32, 4, 2), TileShape(16, 32, 4, 2), split_keys=32, most_splits=4
)


def compute(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, kind: AttentionKind = PLAIN, scattered: bool = True
) -> tuple[Result, Result]:
    """The kernels' results and the reference's, for ragged rows over slots in random order."""
    random = torch.Generator().manual_seed(head_dim)
    query = make_query(sum(tokens for tokens, _ in ROWS), heads, head_dim).to(dtype)
    kv = make_kv(sum(map(sum, ROWS)) + 5, kv_heads, head_dim=head_dim).to(dtype)
    order = torch.randperm(len(kv), generator=random).tolist() if scattered else list(range(len(kv)))
    rows, wanted, at, first = [], [], 0, 0
    for tokens, before in ROWS:
        length = tokens + before
        slots = order[first : first + length]
        rows.append(local_row(at, at + tokens, slot_span(range(length), slots)))
        wanted.append(reference(query[at : at + tokens], kv[slots], range(before, length), kind=kind))
        at, first = at + tokens, first + length
    exact = torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])
    plan = TritonAttention(SMALL).plan(rows, kind)
    return run_pass(plan.start(query, kv), lambda: None), exact


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (4, 1), (20, 1)])
def test_it_agrees_with_the_reference(heads: int, kv_heads: int) -> None:
    assert close(*compute(heads, kv_heads, 16, torch.float32))


@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_head_dims_that_are_no_power_of_two(head_dim: int) -> None:
    assert close(*compute(2, 1, head_dim, torch.float32, scattered=False))


def test_bf16_is_summed_in_fp32() -> None:
    (out, lse), exact = compute(4, 2, 64, torch.bfloat16)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert float((out.double() - exact[0]).norm() / exact[0].norm()) < 0.004
    assert torch.allclose(lse.double(), exact[1], atol=0.005)


@pytest.mark.parametrize("kind", [AttentionKind(window=30), AttentionKind(cap=2.0, scale=0.3), AttentionKind(7, 5.0)])
def test_windows_caps_and_scales(kind: AttentionKind) -> None:
    assert close(*compute(4, 2, 16, torch.float32, kind), atol=1e-5)


def decode_rows(lengths: list[int], slots: list[list[int]]) -> LocalRows:
    runs = [slot_span(range(length), each) for length, each in zip(lengths, slots, strict=True)]
    count = len(lengths)
    return LocalRows(
        list(range(count)), list(range(1, count + 1)), lengths, [(run.run_at, run.run_slot) for run in runs]
    )


@pytest.mark.parametrize("kind", [PLAIN, AttentionKind(window=50)])
def test_decode_rows_as_columns_are_split_and_merged(kind: AttentionKind) -> None:
    lengths = [1, 33, 128, 300]
    kv, query = make_kv(600, 2), make_query(4, 6)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(3)).tolist()
    slots = [order[at : at + length] for at, length in zip((0, 1, 40, 200), lengths, strict=True)]
    started = TritonAttention(SMALL).plan(decode_rows(lengths, slots), kind).start(query, kv)
    wanted = [
        reference(query[at : at + 1], kv[each], range(length - 1, length), kind=kind)
        for at, (length, each) in enumerate(zip(lengths, slots, strict=True))
    ]
    exact = torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])
    assert close(run_pass(started, lambda: None), exact)


def test_a_rows_bits_do_not_depend_on_the_batch() -> None:
    kv, query = make_kv(600, 2), make_query(3, 6)
    lengths, slots = [40, 500, 7], [list(range(40)), list(range(50, 550)), list(range(7))]
    together = run_pass(TritonAttention(SMALL).plan(decode_rows(lengths, slots)).start(query, kv), lambda: None)
    for at in range(3):
        rows = decode_rows([lengths[at]], [slots[at]])
        alone = run_pass(TritonAttention(SMALL).plan(rows).start(query[at : at + 1], kv), lambda: None)
        assert torch.equal(alone[0][0], together[0][at])
        assert torch.equal(alone[1][0], together[1][at])


def spread_row() -> tuple[BatchRow, Tensor, Tensor, RoomSpan, PartialResult, Result]:
    """A row of two queries whose keys lie in slots, in a room, and at a peer."""
    keys, query = make_kv(120, 2, seed=4), make_query(2, 6)
    here, room, away = range(50), range(50, 90), range(90, 119)
    row = BatchRow(0, 2, range(117, 119), (slot_run(here, 7),), (room, away))
    kv = torch.zeros(70, 2, 2, 16)
    kv[7:57] = keys[:50]
    partial = reference(query, keys[90:119], range(117, 119), away)
    part = PartialResult(away, partial[0].float(), partial[1].float())
    return row, kv, query, RoomSpan(room, keys[50:90]), part, reference(query, keys[:119], range(117, 119))


def test_keys_in_slots_in_a_room_and_at_a_peer_merge() -> None:
    row, kv, query, room, part, wanted = spread_row()
    started = TritonAttention(SMALL).plan([row]).start(query, kv)
    while started.advance():
        pass
    assert not started.done
    started.add(0, part)
    started.add(0, room)
    while started.advance():
        pass
    assert close(started.result(), wanted, atol=1e-5)


def test_strided_positions_of_queries_and_keys() -> None:
    keys, query = make_kv(60, 2, seed=5), make_query(20, 6)
    queries, held = range(1, 60, 3), range(0, 60, 2)
    row = BatchRow(0, 20, queries, (slot_run(held, 3),))
    kv = torch.zeros(40, 2, 2, 16)
    kv[3:33] = keys[0:60:2]
    ours = run_pass(TritonAttention(SMALL).plan([row]).start(query, kv), lambda: None)
    assert close(ours, reference(query, keys[0:60:2], queries, held), atol=1e-5)


def test_a_query_that_sees_no_key_has_a_result() -> None:
    kv, query = make_kv(10, 2), make_query(2, 6)
    row = BatchRow(0, 2, range(3, 5), (slot_run(range(4, 9), 0),))
    out, lse = run_pass(TritonAttention(SMALL).plan([row]).start(query, kv), lambda: None)
    assert float(out[0].abs().max()) == 0.0
    assert bool((lse[0] == float("-inf")).all())
    assert bool(lse[1].isfinite().all())


def test_a_long_row_is_cut_and_may_leave_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "PIECE_PAIRS", 1 << 10)
    monkeypatch.setattr(triton_paged, "QUERY_BLOCK", 32)
    kv, query = make_kv(130, 2), make_query(70, 6)
    rows = [local_row(0, 70, slot_run(range(130), 0))]
    whole = TritonAttention(SMALL).plan(rows).start(query, kv)
    pieces = 1
    while whole.advance():
        pieces += 1
    assert pieces > 6
    assert close(whole.result(), reference(query, kv, range(60, 130)), atol=1e-5)
    first = TritonAttention(SMALL).plan(rows).start(query, kv)
    for _ in range(3):
        first.advance()
    again = TritonAttention(SMALL).plan(rows).start(query, kv, {0: first.leave(0)})
    while again.advance():
        pass
    assert all(torch.equal(a, b) for a, b in zip(again.result(), whole.result(), strict=True))


RUNS = [(0, 72), (72, 23), (95, 1), (96, 40), (136, 24), (160, 50)]
"""(first key, keys) of runs that end within, at and shortly before blocks of 32."""


@pytest.mark.parametrize(("kind", "tokens"), [(PLAIN, 70), (AttentionKind(0, 20.0, 0.1), 33), (PLAIN, 210)])
def test_blocks_that_are_copied_as_such_have_the_bits_of_others(
    monkeypatch: pytest.MonkeyPatch, kind: AttentionKind, tokens: int
) -> None:
    """Rows of keys in several runs of slots, one cut into cells of keys that begin within a run, and a decode row."""
    monkeypatch.setattr(triton_paged, "PIECE_PAIRS", 1 << 14)
    described: list[int] = []

    def describe(layer_kv: Tensor, keys: int) -> object:
        described.append(keys)
        return make_descriptor(layer_kv, keys)

    make_descriptor = triton_tiles._described
    monkeypatch.setattr(triton_tiles, "_described", describe)
    slots = [500 - 90 * run + key for run, (_, keys) in enumerate(RUNS) for key in range(keys)]
    kv, query = make_kv(900, 2).bfloat16(), make_query(tokens + 21, 6).bfloat16()
    rows = [
        local_row(0, tokens, slot_span(range(210), slots)), local_row(tokens, tokens + 20, slot_run(range(90), 3)),
        local_row(tokens + 20, tokens + 21, slot_run(range(50), 3)),
    ]  # fmt: skip
    found, counts = [], []
    for long_run in (1, 1 << 20):
        monkeypatch.setattr(triton_tiles, "LONG_RUN", long_run)
        found.append(run_pass(TritonAttention(SMALL).plan(rows, kind).start(query, kv), lambda: None))
        counts.append(len(described))
    count = counts[0]
    assert counts[1] == count > 0
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    wanted = reference(query[:tokens], kv[slots], range(210 - tokens, 210), kind=kind)
    assert float((found[0][0][:tokens].double() - wanted[0]).norm() / wanted[0].norm()) < 0.01
    windowed = AttentionKind(32, 0.0, 0.0)
    monkeypatch.setattr(triton_tiles, "LONG_RUN", 1)
    run_pass(TritonAttention(SMALL).plan(rows, windowed).start(query, kv), lambda: None)
    run_pass(TritonAttention(SMALL).plan(rows, kind).start(query.float(), kv.float()), lambda: None)
    assert len(described) == count, "windows and fp32 go key by key"


def test_other_dtypes_and_strides_are_refused() -> None:
    row, kv, query, *_ = spread_row()
    alone = replace(row, awaited=(), queries=range(48, 50))
    with pytest.raises(ValueError, match=r"queries in torch.float32, KV in torch.bfloat16"):
        run_pass(TritonAttention().plan([alone]).start(query, kv.bfloat16()), lambda: None)
    with pytest.raises(ValueError, match="strides: queries"):
        run_pass(
            TritonAttention().plan([alone]).start(query.transpose(1, 2).contiguous().transpose(1, 2), kv), lambda: None
        )
