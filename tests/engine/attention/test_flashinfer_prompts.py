"""Attention of prompts by flashinfer: what it is told of rows and slots, by a wrapper of its that torch computes."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention import flashinfer_prompts
from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, Result, ragged_rows, run_pass
from dunlin.engine.attention.flashinfer_prompts import (
    FlashinferPrompts,
    FlashinferUnavailable,
    installed_flashinfer,
    open_flashinfer,
)
from dunlin.engine.attention.spans import RoomSpan, slot_run
from dunlin.engine.attention.tile_sizes import TileShape, TileSizes
from tests.engine.attention.reference import close, make_kv, make_query, reference
from tests.fakes.flashinfer import PrefillWrapper

triton_paged = pytest.importorskip("dunlin.engine.attention.triton_paged", exc_type=ModuleNotFoundError)
TritonAttention = triton_paged.TritonAttention

# (tokens, tokens before them): decode rows, then prompts beside each other, and one behind a decode row.
ROWS = [(1, 31), (1, 150), (35, 21), (40, 0), (1, 9), (33, 70)]
PROMPTS = [35, 40, 33]
SMALL = TileSizes(
    TileShape(32, 32, 4, 2), TileShape(32, 32, 4, 2), TileShape(16, 32, 4, 2), split_keys=32, most_splits=4
)


class Library:
    """Makes wrappers, and knows what was launched before each."""

    def __init__(self, error: float = 0.0) -> None:
        self.made: list[PrefillWrapper] = []
        self.waits = 0
        self._error = error

    def prompts(self) -> FlashinferPrompts:
        return FlashinferPrompts(self._make, lambda: self._wait)

    @property
    def plans(self) -> int:
        return sum(each.plans for each in self.made)

    @property
    def runs(self) -> list[list[int]]:
        return [run for each in self.made for run in each.runs]

    def _make(self) -> PrefillWrapper:
        self.made.append(PrefillWrapper(self._error))
        return self.made[-1]

    def _wait(self) -> None:
        self.waits += 1


def ragged(rows: list[tuple[int, int]], kind: AttentionKind) -> tuple[list[BatchRow], Tensor, Tensor, Result]:
    """Rows whose keys lie in slots in random order, queries, KV, and the reference's results."""
    query, kv = make_query(sum(tokens for tokens, _ in rows), 4), make_kv(sum(map(sum, rows)) + 5, 2)
    order = torch.randperm(len(kv), generator=torch.Generator().manual_seed(2)).tolist()
    wanted, first = [], 0
    batch = ragged_rows(rows, order)
    for row in batch:
        slots = order[first : first + row.length]
        wanted.append(reference(query[row.start : row.stop], kv[slots], row.queries, kind=kind))
        first += row.length
    return batch, query, kv, (torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted]))


@pytest.mark.parametrize("kind", [PLAIN, AttentionKind(window=30), AttentionKind(cap=2.0, scale=0.3)])
def test_prompts_agree_with_the_reference_and_decode_rows_are_left(kind: AttentionKind) -> None:
    library = Library()
    rows, query, kv, exact = ragged(ROWS, kind)
    plan = TritonAttention(SMALL, library.prompts()).plan(rows, kind)
    for _layer in range(2):
        assert close(run_pass(plan.start(query, kv), lambda: None), exact)
    assert library.runs == [PROMPTS, PROMPTS]
    assert library.plans == 1, "a plan is for all layers"


def test_adjacent_prompts_are_written_where_they_belong() -> None:
    library = Library()
    rows, query, kv, exact = ragged(ROWS[:4], PLAIN)
    assert close(run_pass(TritonAttention(SMALL, library.prompts()).plan(rows).start(query, kv), lambda: None), exact)
    assert library.runs == [[35, 40]]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "PIECE_PAIRS", 1 << 12)
    monkeypatch.setattr(triton_paged, "QUERY_BLOCK", 32)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_a_long_row_have_plans_of_their_own() -> None:
    library = Library()
    rows, query, kv, exact = ragged([(100, 20)], PLAIN)
    plan = TritonAttention(SMALL, library.prompts()).plan(rows)
    for _layer in range(3):
        assert close(run_pass(plan.start(query, kv), lambda: None), exact)
    blocks = [[32], [32], [32]]  # the last four queries are a narrow tile
    assert sorted(library.runs) == sorted(3 * blocks)
    assert library.plans == len(blocks)


@pytest.mark.usefixtures("small_pieces")
def test_a_piece_of_the_last_keys_is_merged_with_those_before() -> None:
    library = Library()
    rows, query, kv, exact = ragged([(96, 70)], PLAIN)
    plan = TritonAttention(SMALL, library.prompts()).plan(rows)
    assert close(run_pass(plan.start(query, kv), lambda: None), exact)
    assert library.runs == [[32], [32]], "queries from 70 on see 102 keys; those from 134 on the last 38 in this piece"


def test_plans_that_are_used_layer_by_layer_keep_their_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_prompts, "WRAPPERS", 3)
    library = Library()
    attention = TritonAttention(SMALL, library.prompts())
    batches = [ragged([(40 + at, at)], PLAIN) for at in range(3)]
    plans = [attention.plan(rows) for rows, _, _, _ in batches]
    for at in (0, 1, 0, 1, 2, 0, 1):
        _, query, kv, exact = batches[at]
        assert close(run_pass(plans[at].start(query, kv), lambda: None), exact)
    assert (len(library.made), library.plans) == (3, 3)


def test_a_wrapper_that_another_plan_took_is_planned_again_once_its_copy_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashinfer_prompts, "WRAPPERS", 2)
    library = Library()
    attention = TritonAttention(SMALL, library.prompts())
    batches = [ragged([(40 + at, at)], PLAIN) for at in range(3)]
    plans = [attention.plan(rows) for rows, _, _, _ in batches]
    for _layer in range(2):
        for plan, (_, query, kv, exact) in zip(plans, batches, strict=True):
            assert close(run_pass(plan.start(query, kv), lambda: None), exact)
    assert (len(library.made), library.plans, library.waits) == (2, 6, 4)


def test_what_merges_in_fp32_and_what_has_gaps_is_not_its_work() -> None:
    library = Library()
    attention = TritonAttention(SMALL, library.prompts())
    rows, query, kv, exact = ragged([(40, 0)], PLAIN)
    started = attention.plan(rows).start(query.bfloat16(), kv.bfloat16(), dtype=torch.float32)
    assert close(run_pass(started, lambda: None), exact, atol=0.05)
    striped = BatchRow(0, 40, range(0, 80, 2), (slot_run(range(0, 80, 2), 0),))
    out = run_pass(attention.plan([striped]).start(query, kv), lambda: None)
    assert close(out, reference(query, kv[:40], range(0, 80, 2), range(0, 80, 2)))
    ahead = BatchRow(0, 40, range(60, 100), (slot_run(range(40), 0),), (range(40, 100),))
    began = attention.plan([ahead]).start(query, kv)
    while began.advance():
        pass
    began.add(0, RoomSpan(range(40, 100), make_kv(60, 2, seed=5)))
    while began.advance():
        pass
    keys = torch.cat((kv[:40], make_kv(60, 2, seed=5)))
    assert close(began.result(), reference(query, keys, range(60, 100)))
    assert library.runs == [[40]], "the room's keys end with the queries"


def test_queries_that_see_none_of_the_keys_are_not_its_work() -> None:
    library = Library()
    query, kv, room = make_query(40, 4), make_kv(80, 2), make_kv(20, 2, seed=5)
    row = BatchRow(0, 40, range(60, 100), (slot_run(range(80), 0),), (range(80, 100),))
    started = TritonAttention(SMALL, library.prompts()).plan([row]).start(query, kv)
    started.add(0, RoomSpan(range(80, 100), room))
    while started.advance():
        pass
    assert close(started.result(), reference(query, torch.cat((kv, room)), range(60, 100)))
    assert library.runs == []


def test_it_is_refused_for_heads_and_numbers_that_it_has_no_kernels_for() -> None:
    for head_dim, dtype in ((80, torch.bfloat16), (128, torch.float32)):
        with pytest.raises(FlashinferUnavailable, match=f"no kernels for heads of {head_dim} in"):
            open_flashinfer(torch.device("cpu"), head_dim, dtype, lambda: lambda: None)


def test_the_library_takes_what_it_is_given() -> None:
    """By its own signatures, where it is installed; it computes nothing without a GPU."""
    if installed_flashinfer() is None:
        pytest.skip("flashinfer is not installed")
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper

    for fake, real in ((PrefillWrapper.plan, Wrapper.plan), (PrefillWrapper.run, Wrapper.run)):
        theirs = _parameters(real)
        for name, parameter in _parameters(fake).items():
            assert name in theirs, f"{real.__qualname__} takes no {name}"
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                assert list(theirs).index(name) == list(_parameters(fake)).index(name), name


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)
