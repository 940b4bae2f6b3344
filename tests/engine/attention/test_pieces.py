"""Every backend: work in pieces, rows that leave between them and come back, and keys in several places."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dunlin.engine.attention import fused, paged
from dunlin.engine.attention.base import (
    Attention,
    AttentionPass,
    BatchRow,
    PartialResult,
    Result,
    RowState,
    covered_by,
    local_row,
    merge_results,
)
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from dunlin.engine.attention.spans import KeySpan, RoomSpan, SlotSpan, end_to_end, slot_run, slot_span
from tests.engine.attention.reference import (
    BACKENDS,
    BY_TORCH,
    attend,
    backend_named,
    close,
    is_deterministic,
    make_kv,
    make_query,
    reference,
)

SLOTS = 1500
KV = make_kv(SLOTS, 2)
# (tokens, tokens before them), each over slots of its own.
SHAPES = [(1, 40), (1, 700), (130, 0), (70, 600), (3, 20)]
MOVED = 37
"""By how many slots a row's KV lies elsewhere when the row comes back."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "QUERY_BLOCK", 32)
    monkeypatch.setattr(fused, "KEY_BLOCK", 128)
    monkeypatch.setattr(fused, "PIECE_PAIRS", 1 << 12)
    monkeypatch.setattr(fused, "DECODE_PAIRS", 1 << 9)
    monkeypatch.setattr(paged, "QUERY_BLOCK", 32)
    monkeypatch.setattr(paged, "PIECE_PAIRS", 1 << 12)
    monkeypatch.setattr(paged, "LEAST_QUERIES", 8)


def make_rows(chosen: list[int], moved: int = 0) -> tuple[list[BatchRow], Tensor]:
    """The chosen rows as a batch, and where their queries are in `QUERY`. Slots overlap: rows share a beginning."""
    rows: list[BatchRow] = []
    places: list[int] = []
    start = 0
    for index in chosen:
        tokens, before = SHAPES[index]
        rows.append(local_row(start, start + tokens, moved, tokens + before))
        at = sum(count for count, _ in SHAPES[:index])
        places += range(at, at + tokens)
        start += tokens
    return rows, torch.tensor(places)


QUERY = make_query(sum(tokens for tokens, _ in SHAPES), 6)


def finish(attention_pass: AttentionPass) -> Result:
    while attention_pass.advance():
        pass
    return attention_pass.result()


def count_pieces(backend: Attention, chosen: list[int]) -> int:
    rows, places = make_rows(chosen)
    started, count = backend.plan(rows).start(QUERY[places], KV), 1
    while started.advance():
        count += 1
    return count


@pytest.mark.parametrize("name", BACKENDS)
def test_long_rows_are_cut_and_short_ones_share_a_piece(name: str) -> None:
    backend = backend_named(name)
    assert count_pieces(backend, [0, 4]) <= 3
    assert count_pieces(backend, [3]) >= 2
    assert count_pieces(backend, [0, 1, 2, 3, 4]) > count_pieces(backend, [2])


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", BACKENDS)
def test_rows_that_leave_and_come_back_have_the_bits_of_those_that_stay(name: str, data: Any) -> None:
    """They come back among other rows, in another order, with their KV elsewhere."""
    backend, everyone = backend_named(name), list(range(len(SHAPES)))
    rows, places = make_rows(everyone)
    alone = {index: attend(backend, *_batch([index]), KV) for index in everyone}
    started = backend.plan(rows).start(QUERY[places], KV)
    leaving = data.draw(st.lists(st.sampled_from(everyone), unique=True, min_size=1), label="leaving")
    left: dict[int, RowState] = {}
    for index in leaving:
        for _ in range(data.draw(st.integers(0, 9), label="pieces before")):
            started.advance()
        left[index] = started.leave(index)
    out, lse = finish(started)
    for index in set(everyone) - set(leaving):
        assert _same((out[_span(rows[index])], lse[_span(rows[index])]), alone[index])
    back = data.draw(st.permutations(leaving), label="back")
    fresh = (
        data.draw(st.lists(st.sampled_from(sorted(set(everyone) - set(back))), unique=True)) if len(back) < 5 else []
    )
    elsewhere = torch.cat([KV[:MOVED], KV[: SLOTS - MOVED]])
    rows, places = make_rows([*back, *fresh], moved=MOVED)
    resumed = {at: left[index] for at, index in enumerate(back)}
    out, lse = finish(backend.plan(rows).start(QUERY[places], elsewhere, resumed))
    for row, index in zip(rows, [*back, *fresh], strict=True):
        assert _same((out[_span(row)], lse[_span(row)]), alone[index])


def _batch(chosen: list[int]) -> tuple[list[BatchRow], Tensor]:
    rows, places = make_rows(chosen)
    return rows, QUERY[places]


def _span(row: BatchRow) -> slice:
    return slice(row.start, row.stop)


def _same(ours: Result, theirs: Result) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_leaves_once_and_comes_back_with_the_same_keys(name: str) -> None:
    backend = backend_named(name)
    started = backend.plan([local_row(0, 70, 0, 670)]).start(QUERY[:70], KV)
    started.advance()
    state = started.leave(0)
    assert started.done
    with pytest.raises(ValueError, match="left the pass already"):
        started.leave(0)
    with pytest.raises(ValueError, match="which it has not"):
        backend.plan([local_row(0, 70, 0, 600)]).start(QUERY[:70], KV, {0: state})


@pytest.mark.parametrize("name", BACKENDS)
def test_the_result_of_unfinished_work_is_refused(name: str) -> None:
    started = backend_named(name).plan([local_row(0, 70, 0, 670)]).start(QUERY[:70], KV)
    started.advance()
    with pytest.raises(ValueError, match="not done"):
        started.result()


# Positions of a part of the keys: stripes, and stretches.
parts_of_keys = st.one_of(
    st.integers(2, 4).map(lambda members: [range(each, 700, members) for each in range(members)]),
    st.lists(st.integers(1, 699), max_size=5, unique=True).map(
        lambda cuts: [range(a, b) for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 700], strict=True)]
    ),
    st.lists(st.integers(1, 10), max_size=3, unique=True).map(
        lambda cuts: [
            range(a * 64, b * 64 + (b == 11) * -4) for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 11], strict=True)
        ]
    ),
)
queries_of_rows = st.sampled_from([range(699, 700), range(620, 700), range(0, 700, 7), range(3, 700, 17), range(2, 9)])


@settings(max_examples=25, deadline=None)
@given(parts=parts_of_keys, queries=queries_of_rows, data=st.data())
@pytest.mark.parametrize("name", BACKENDS)
def test_keys_split_at_random_give_the_whole(name: str, parts: list[range], queries: range, data: Any) -> None:
    """Own slots, K/V that is here already, K/V that arrives, and results of peers, in any order of arrival. In the
    deterministic mode: the same bits.
    """
    backend, query = backend_named(name), make_query(len(queries), 6)
    whole = attend(backend, [BatchRow(0, len(queries), queries, (slot_run(range(700), 0),))], query, KV)
    assert close(whole, reference(query, KV[:700], queries))
    places = [data.draw(st.sampled_from(["slots", "room", "arriving", "peer"]), label=str(part)) for part in parts]
    keys, arriving = _distribute(backend, query, queries, list(zip(parts, places, strict=True)))
    awaited = tuple(span.positions for span in arriving)
    started = backend.plan([BatchRow(0, len(queries), queries, keys, awaited)]).start(query, KV)
    for span in data.draw(st.permutations(arriving)):
        if data.draw(st.booleans()):
            started.advance()
        assert not started.done
        started.add(0, span)
    merged = finish(started)
    assert close(merged, whole)
    assert not is_deterministic(name) or _same(merged, whole)


def _distribute(
    backend: Attention, query: Tensor, queries: range, parts: list[tuple[range, str]]
) -> tuple[tuple[KeySpan, ...], list[RoomSpan | PartialResult]]:
    """The keys at hand, and what arrives."""
    keys: list[KeySpan] = []
    arriving: list[RoomSpan | PartialResult] = []
    for positions, place in parts:
        span = slot_span(positions, list(positions))
        room = RoomSpan(positions, span.gather(KV, 0, len(positions)).clone())
        if place == "peer":
            results, rooms = backend.share([positions], 700)
            arriving += [_result_of_peer(backend, query, queries, each) for (each,) in results]
            arriving += [RoomSpan(each, KV[list(each)]) for each in rooms]
        elif place == "arriving":
            arriving.append(room)
        else:
            keys.append(span if place == "slots" else room)
    return tuple(keys), arriving


def _result_of_peer(backend: Attention, query: Tensor, queries: range, positions: range) -> PartialResult:
    row = BatchRow(0, len(queries), queries, (slot_span(positions, list(positions)),))
    return PartialResult(positions, *finish(backend.plan([row]).start(query, KV, dtype=torch.float32)))


@pytest.mark.parametrize("queries", [range(699, 700), range(650, 700), range(0, 700, 7)])
@pytest.mark.parametrize("name", [name for name in BACKENDS if not is_deterministic(name)])
def test_a_holder_answers_once_for_all_its_spans(name: str, queries: range) -> None:
    """One holder has three spans, another the two between them: two results, whichever comes first."""
    backend, query = backend_named(name), make_query(len(queries), 6)
    cuts = [0, 64, 200, 264, 500, 640]
    spans = [range(*pair) for pair in pairwise(cuts)]
    answers = []
    for held in (spans[::2], spans[1::2]):
        assert backend.share(held, 700) == ([tuple(held)], [])
        row = BatchRow(0, len(queries), queries, tuple(slot_span(each, list(each)) for each in held))
        answers.append(
            PartialResult(covered_by(held), *finish(backend.plan([row]).start(query, KV, dtype=torch.float32)))
        )
    names = tuple(answer.positions for answer in answers)
    assert names == (range(640), range(64, 500))
    own = slot_span(range(640, 700), list(range(640, 700)))
    started = backend.plan([BatchRow(0, len(queries), queries, (own,), names)]).start(query, KV)
    for answer in reversed(answers):
        started.add(0, answer)
    assert close(finish(started), reference(query, KV[:700], queries))


def test_spans_end_to_end_are_read_in_one_go() -> None:
    spans = [slot_span(range(3, 6), [9, 10, 2]), slot_run(range(20, 24), 40), slot_span(range(30, 31), [7])]
    joined = end_to_end(spans)
    assert joined.positions == range(3, 11)
    assert joined.slots().tolist() == [9, 10, 2, 40, 41, 42, 43, 7]
    assert list(joined.run_at) == [0, 2, 3, 7]


@pytest.mark.parametrize("own", range(8))
@pytest.mark.parametrize("name", ["deterministic", BY_TORCH])
def test_blocks_merge_in_order_of_position_whoever_holds_them(name: str, own: int) -> None:
    """Three blocks, so that another order has other bits."""
    backend, query, queries = backend_named(name), make_query(2, 6), range(1498, 1500)
    blocks = [range(512), range(512, 1024), range(1024, 1500)]
    whole = attend(backend, [BatchRow(0, 2, queries, (slot_run(range(1500), 0),))], query, KV)
    keys = tuple(slot_span(each, list(each)) for at, each in enumerate(blocks) if own >> at & 1)
    awaited = tuple(each for at, each in enumerate(blocks) if not own >> at & 1)
    started = backend.plan([BatchRow(0, 2, queries, keys, awaited)]).start(query, KV)
    for each in reversed(awaited):
        started.add(0, _result_of_peer(backend, query, queries, each))
    assert _same(finish(started), whole)


def test_a_peer_may_not_answer_for_a_part_of_a_block_in_the_deterministic_mode() -> None:
    query, backend = make_query(1, 6), ATTENTION_BACKENDS["deterministic"]()
    row = BatchRow(0, 1, range(699, 700), (slot_run(range(512), 0),), (range(512, 699), range(699, 700)))
    started = backend.plan([row]).start(query, KV)
    with pytest.raises(ValueError, match="merges whole blocks"):
        started.add(0, PartialResult(range(512, 699), query, query[..., 0]))
    with pytest.raises(ValueError, match=r"needs all of a block"):
        attend(backend, [BatchRow(0, 1, range(699, 700), (slot_run(range(300), 0),))], query, KV)


def test_keys_that_a_row_does_not_await_are_refused() -> None:
    row = BatchRow(0, 1, range(99, 100), (slot_run(range(50), 0),), (range(50, 100),))
    started = ATTENTION_BACKENDS["torch"]().plan([row]).start(make_query(1, 6), KV)
    with pytest.raises(ValueError, match=r"awaits keys at \[range\(50, 100\)\], not at range\(50, 99\)"):
        started.add(0, RoomSpan(range(50, 99), KV[50:99]))


@pytest.mark.parametrize("name", ["torch", "paged"])
def test_bf16_results_merge_without_losing_more_than_the_whole_does(name: str) -> None:
    """256 parts of 8 keys. Merged in bf16, as results once were, the error is several times as great."""
    backend, tokens, length = backend_named(name), 4, 2048
    kv, query = make_kv(length, 2, head_dim=64).bfloat16(), make_query(tokens, 6, head_dim=64).bfloat16()
    queries = range(length - 1, length + tokens - 1)
    exact = reference(query, kv, queries)[0]
    whole = attend(backend, [BatchRow(0, tokens, queries, (slot_run(range(length), 0),))], query, kv)[0]
    parts = [slot_run(range(start, start + 8), start) for start in range(0, length, 8)]
    split = attend(backend, [BatchRow(0, tokens, queries, tuple(parts))], query, kv)[0]
    assert _error(split, exact) <= 1.1 * _error(whole, exact)
    assert _error(_merged_in_bf16(backend, query, kv, queries, parts), exact) > 3 * _error(whole, exact)


def _merged_in_bf16(backend: Attention, query: Tensor, kv: Tensor, queries: range, parts: list[SlotSpan]) -> Tensor:
    merged: Result | None = None
    for span in parts:
        part = attend(backend, [BatchRow(0, len(query), queries, (span,))], query, kv)
        merged = part if merged is None else merge_results(merged, part)
        merged = merged[0].bfloat16(), merged[1]
    assert merged is not None
    return merged[0]


def _error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())
