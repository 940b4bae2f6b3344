"""The deterministic mode's ways of computing: a query has the same bits alone, in any chunk, beside any rows and
wherever its keys lie, by each level of the kernel.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, Result, local_row, run_pass
from dunlin.engine.attention.block_kernel import KernelBlocks
from dunlin.engine.attention.block_tiles import TileBlocks
from dunlin.engine.attention.blocks import BLOCK
from dunlin.engine.attention.choice import choose_deterministic
from dunlin.engine.attention.deterministic import DeterministicAttention
from dunlin.engine.attention.native import library
from dunlin.engine.attention.native.library import KernelUnavailable, PagedKernel, load_kernel
from dunlin.engine.attention.spans import RoomSpan, slot_run, slot_span
from tests.engine.attention.reference import close, make_kv, make_query, reference

LENGTH = 1150  # three blocks
LEVELS = range(3)
# (query heads, KV heads, head_dim): what the kernel has AVX-512 for, with one to eight rows of a KV head, and what not.
SHAPES = [(4, 4, 32), (4, 2, 64), (8, 1, 96), (6, 2, 128), (6, 2, 80), (3, 1, 24)]
KINDS = [PLAIN, AttentionKind(window=300), AttentionKind(window=70, cap=2.0, scale=0.4)]


def kernel_of(level: int) -> PagedKernel:
    try:
        kernel = load_kernel()
    except KernelUnavailable as error:
        pytest.skip(str(error))
    if level > kernel.level:
        pytest.skip(f"this processor has no {library.LEVELS[level]}")
    return replace(kernel, level=level)


def backend_at(level: int | None) -> DeterministicAttention:
    """By the kernel at a level, or by torch."""
    return DeterministicAttention(TileBlocks() if level is None else KernelBlocks(kernel_of(level)))


@dataclass(frozen=True)
class Company:
    """How a sequence is computed: tokens of a chunk and those before it, the neighbours' lengths, where its KV lies."""

    tokens: int
    before: int
    neighbours: list[int]
    place: int
    scattered: bool


companies = st.builds(
    Company,
    tokens=st.sampled_from([1, 2, 3, 5, 17, 40, 130]),
    before=st.sampled_from([0, 1, 63, 64, 200, BLOCK - 1, BLOCK, 700, 1000]),
    neighbours=st.lists(st.sampled_from([1, 30, 64, 300, BLOCK, BLOCK + 1, 1100]), max_size=4),
    place=st.integers(0, 4),
    scattered=st.booleans(),
)


def attend_in(
    backend: DeterministicAttention, kind: AttentionKind, company: Company, query: Tensor, kv: Tensor
) -> Result:
    """The results of the company's chunk; its query at position p is `query[p]`."""
    length = company.before + company.tokens
    slots = torch.arange(LENGTH, LENGTH + length)
    if company.scattered:
        slots = slots[torch.randperm(length, generator=torch.Generator().manual_seed(length))]
    layer_kv = torch.cat([kv.flip(0), kv])
    layer_kv[slots] = kv[:length]
    place = min(company.place, len(company.neighbours))
    own = range(company.before, length)
    tokens = [[each - 1] for each in company.neighbours[:place]] + [list(own)]
    tokens += [[each - 1] for each in company.neighbours[place:]]
    rows: list[BatchRow] = []
    for at, positions in enumerate(tokens):
        start = rows[-1].stop if rows else 0
        span = slot_span(range(length), slots.tolist()) if at == place else slot_run(range(positions[-1] + 1), 0)
        rows.append(local_row(start, start + len(positions), span))
    packed = torch.cat([query[positions] for positions in tokens])
    out, lse = run_pass(backend.plan(rows, kind).start(packed, layer_kv), lambda: None)
    return out[rows[place].start : rows[place].stop], lse[rows[place].start : rows[place].stop]


@pytest.fixture(scope="module", params=[None, *LEVELS], ids=["torch", *library.LEVELS[: len(LEVELS)]])
def backend(request: pytest.FixtureRequest) -> DeterministicAttention:
    return backend_at(request.param)


@pytest.mark.parametrize("kind", KINDS, ids=["plain", "window", "all"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_query_has_the_same_bits_in_any_company(
    backend: DeterministicAttention, shape: tuple[int, int, int], kind: AttentionKind
) -> None:
    heads, kv_heads, head_dim = shape
    kv, query = make_kv(LENGTH, kv_heads, head_dim=head_dim), make_query(LENGTH, heads, head_dim)
    alone: dict[int, Result] = {}

    @settings(max_examples=12)
    @given(company=companies)
    def check(company: Company) -> None:
        out, lse = attend_in(backend, kind, company, query, kv)
        for at in {0, company.tokens // 2, company.tokens - 1}:
            position = company.before + at
            if position not in alone:
                alone[position] = attend_in(backend, kind, Company(1, position, [], 0, False), query, kv)
            assert torch.equal(alone[position][0][0], out[at])
            assert torch.equal(alone[position][1][0], lse[at])

    check()
    positions = range(LENGTH - 1, LENGTH)
    ours = attend_in(backend, kind, Company(1, LENGTH - 1, [], 0, True), query, kv)
    assert close(ours, reference(query[positions], kv, positions, kind=kind), atol=4e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keys_in_rooms_have_the_bits_of_keys_in_slots(
    backend: DeterministicAttention, shape: tuple[int, int, int]
) -> None:
    """A block wholly in one room, one cut at random, and one in striped spans."""
    heads, kv_heads, head_dim = shape
    kv, queries = make_kv(LENGTH, kv_heads, head_dim=head_dim), range(LENGTH - 40, LENGTH)
    query = make_query(LENGTH, heads, head_dim)[list(queries)]
    whole = BatchRow(0, 40, queries, (slot_run(range(LENGTH), 0),))
    expected = run_pass(backend.plan([whole]).start(query, kv), lambda: None)
    stripes = [range(2 * BLOCK + first, LENGTH, 2) for first in (0, 1)]
    keys = (
        RoomSpan(range(BLOCK), kv[:BLOCK].clone()),
        slot_run(range(BLOCK, BLOCK + 100), BLOCK),
        RoomSpan(range(BLOCK + 100, 2 * BLOCK), kv[BLOCK + 100 : 2 * BLOCK].clone()),
        slot_span(stripes[0], list(stripes[0])),
        RoomSpan(stripes[1], kv[list(stripes[1])]),
    )
    found = run_pass(backend.plan([BatchRow(0, 40, queries, keys)]).start(query, kv), lambda: None)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_two_threads_have_the_bits_of_one() -> None:
    backend, kv, query = backend_at(2), make_kv(LENGTH, 2, head_dim=64), make_query(LENGTH, 4, 64)
    company = Company(130, 700, [300], 0, True)
    one = attend_in(backend, PLAIN, company, query, kv)
    torch.set_num_threads(2)
    try:
        two = attend_in(backend, PLAIN, company, query, kv)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_without_a_kernel_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> PagedKernel:
        raise KernelUnavailable("no kernel here")

    monkeypatch.setattr("dunlin.engine.attention.choice.load_kernel", refuse)
    backend, told = choose_deterministic()
    assert isinstance(backend, DeterministicAttention)
    assert isinstance(backend.blocks, TileBlocks)
    assert told == "torch (no kernel here)"


def test_a_kernel_that_disagrees_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(kernel_of(0), kind=AttentionKind(scale=3.0))
    monkeypatch.setattr(PagedKernel, "of", lambda self, kind: wrong)
    monkeypatch.setattr("dunlin.engine.attention.choice.load_kernel", lambda: wrong)
    backend, told = choose_deterministic()
    assert isinstance(backend, DeterministicAttention)
    assert isinstance(backend.blocks, TileBlocks)
    assert "other results" in told
