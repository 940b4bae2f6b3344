"""The kernel: every way of computing that it has, shapes, slots in any order, and what it refuses."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hatch_build
from dunlin.engine.attention import choice, paged
from dunlin.engine.attention.base import PLAIN, AttentionKind, BatchRow, LocalRows, Result, local_row, run_pass
from dunlin.engine.attention.choice import agrees_with_torch, choose_backend
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.native.library import LEVELS, SOURCE, KernelUnavailable, PagedKernel, load_kernel
from dunlin.engine.attention.paged import PagedAttention
from dunlin.engine.attention.piecewise import PiecewisePlan
from dunlin.engine.attention.spans import slot_run, slot_span
from tests.engine.attention.reference import attend, close, make_kv, make_query, reference

try:
    KERNEL = load_kernel()
except KernelUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

WAYS = [replace(KERNEL, level=level) for level in range(KERNEL.level + 1)]
# (tokens, tokens before them): tasks end at 16 queries and 256 keys, blocks at 64 keys.
ROWS = [(1, 0), (1, 62), (1, 63), (1, 256), (1, 700), (2, 300), (4, 60), (7, 90), (16, 0), (33, 100), (65, 5)]


def compute(kernel: PagedKernel, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Result, Result]:
    """The kernel's results and the reference's, for ragged rows over slots in random order."""
    random = torch.Generator().manual_seed(head_dim)
    query = make_query(sum(tokens for tokens, _ in ROWS), heads, head_dim).to(dtype)
    kv = make_kv(sum(map(sum, ROWS)), kv_heads, head_dim=head_dim).to(dtype)
    order = torch.randperm(len(kv), generator=random).tolist()
    rows, wanted, at, first = [], [], 0, 0
    for tokens, before in ROWS:
        length = tokens + before
        slots = sorted(order[first : first + length]) if tokens % 2 else order[first : first + length]
        rows.append(local_row(at, at + tokens, slot_span(range(length), slots)))
        wanted.append(reference(query[at : at + tokens], kv[slots], range(before, length)))
        at, first = at + tokens, first + length
    exact = torch.cat([out for out, _ in wanted]), torch.cat([lse for _, lse in wanted])
    return attend(PagedAttention(kernel), rows, query, kv), exact


@pytest.mark.parametrize("kernel", WAYS, ids=[LEVELS[way.level] for way in WAYS])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (16, 8), (6, 2), (8, 1), (40, 2)])
@pytest.mark.parametrize("head_dim", [16, 24, 32, 64, 80, 96, 128, 256])
def test_it_agrees_with_the_reference(kernel: PagedKernel, heads: int, kv_heads: int, head_dim: int) -> None:
    assert close(*compute(kernel, heads, kv_heads, head_dim, torch.float32))
    (out, lse), exact = compute(kernel, heads, kv_heads, head_dim, torch.bfloat16)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert torch.allclose(out.double(), exact[0], atol=0.02)
    assert float((out.double() - exact[0]).norm() / exact[0].norm()) < 0.003
    assert torch.allclose(lse.double(), exact[1], atol=0.005)


@pytest.mark.parametrize("kernel", WAYS, ids=[LEVELS[way.level] for way in WAYS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 9])
def test_what_is_no_number_stays_none_and_spoils_its_row_alone(
    kernel: PagedKernel, dtype: torch.dtype, tokens: int
) -> None:
    kv, query = make_kv(400, 2, head_dim=64).to(dtype), make_query(2 * tokens, 4, 64).to(dtype)
    for damaged in (3, 130):
        spoiled = kv.clone()
        spoiled[damaged, 0] = float("nan")
        rows = [local_row(0, tokens, 0, 200), local_row(tokens, 2 * tokens, 200, 200)]
        out, lse = attend(PagedAttention(kernel), rows, query, spoiled)
        assert out[:tokens].isnan().all()
        assert lse[:tokens].isnan().all()
        assert out[tokens:].isfinite().all()


def test_bits_depend_neither_on_threads_nor_on_neighbours() -> None:
    kv, query = make_kv(3000, 2, head_dim=64).bfloat16(), make_query(40, 4, 64).bfloat16()
    rows = [local_row(at, at + 1, 7 * at, 900 + at) for at in range(20)] + [local_row(20, 40, 0, 1500)]
    together = attend(PagedAttention(KERNEL), rows, query, kv)
    torch.set_num_threads(3)
    try:
        assert all(
            torch.equal(a, b) for a, b in zip(together, attend(PagedAttention(KERNEL), rows, query, kv), strict=True)
        )
    finally:
        torch.set_num_threads(1)
    for at in (0, 13):
        alone = attend(PagedAttention(KERNEL), [local_row(0, 1, 7 * at, 900 + at)], query[at : at + 1], kv)
        assert torch.equal(alone[0][0], together[0][at])


def test_queries_may_be_a_view_of_a_wider_tensor() -> None:
    wide, kv = make_query(5, 12, 64), make_kv(50, 2, head_dim=64)
    rows = [local_row(0, 5, 0, 50)]
    assert close(attend(PagedAttention(KERNEL), rows, wide[:, :4], kv), reference(wide[:, :4], kv, range(45, 50)))


def test_it_refuses_what_it_would_misread() -> None:
    kv, query = make_kv(50, 2, head_dim=64), make_query(5, 4, 64)
    rows = [local_row(0, 5, 0, 50)]
    with pytest.raises(ValueError, match=r"queries in torch\.bfloat16, KV in torch\.float32"):
        attend(PagedAttention(KERNEL), rows, query.bfloat16(), kv)
    with pytest.raises(ValueError, match="strides"):
        attend(PagedAttention(KERNEL), rows, query, kv.transpose(0, 1).contiguous().transpose(0, 1))
    with pytest.raises(ValueError, match="5 heads over 2 KV heads of 64"):
        attend(PagedAttention(KERNEL), rows, make_query(5, 5, 64), kv)


def columns(lengths: list[int], runs: "list[tuple[array[int], array[int]]]") -> LocalRows:
    """One token of each sequence."""
    count = len(lengths)
    return LocalRows(list(range(count)), list(range(1, count + 1)), lengths, runs)


def in_rows(rows: LocalRows) -> list[BatchRow]:
    return [rows[at] for at in range(len(rows))]


def test_a_decode_batch_step_after_step_is_what_its_rows_are_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "DECODE_PAIRS", 250)
    backend, kv, query = PagedAttention(KERNEL), make_kv(2000, 2, head_dim=64), make_query(4, 4, 64)
    a, b = (array("q", [0, 40]), array("q", [500, 100])), (array("q", [0]), array("q", [900]))
    grown = (array("q", [0, 40, 61]), array("q", [500, 100, 7]))
    batches = [
        columns([60, 90, 120, 100], [a, b, a, b]),
        columns([61, 91, 121, 101], [a, b, a, b]),
        columns([62, 92, 122], [grown, b, a]),
        columns([63, 300, 123], [grown, b, a]),  # the second is too long to share a piece
        LocalRows([0, 1], [1, 4], [93, 77], [b, a]),
        LocalRows([0], [3], [77], [a]),
    ]
    for rows in batches:
        used = query[: rows.stops[-1]]
        ours = run_pass(backend.plan(rows).start(used, kv), lambda: None)
        assert close(ours, attend(FusedAttention(), in_rows(rows), used, kv))
        assert close(attend(FusedAttention(), rows, used, kv), ours)


def test_the_table_of_an_unchanged_batch_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []
    original = paged._joined

    def counted(arrays: "Sequence[array[int]]") -> Tensor:
        made.append(original(arrays))
        return made[-1]

    monkeypatch.setattr(paged, "_joined", counted)
    backend, runs = PagedAttention(KERNEL), [slot_run(range(9), 0), slot_run(range(9), 50)]
    pairs = [(span.run_at, span.run_slot) for span in runs]
    for length in range(9, 20):
        backend.plan(columns([length, length + 3], pairs))
    assert len(made) == 2


def test_a_kernel_that_computes_something_else_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend() == ("paged", f"paged kernel ({LEVELS[KERNEL.level]})")

    class Wrong(PagedAttention):
        """Takes the first slots for everyone's."""

        def plan(self, rows: Sequence[BatchRow], kind: AttentionKind = PLAIN) -> PiecewisePlan:
            return super().plan([local_row(row.start, row.stop, 0, row.length) for row in rows], kind)

    assert not agrees_with_torch(Wrong(KERNEL))
    monkeypatch.setattr(choice, "PagedAttention", Wrong)
    assert choose_backend()[0] == "torch"
    assert "gives other results" in choose_backend()[1]


def test_the_reason_for_computing_without_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelUnavailable, match="was not built"):
        load_kernel(tmp_path / "missing.so")
    (tmp_path / "broken.so").write_bytes(b"no library")
    with pytest.raises(KernelUnavailable, match="does not load"):
        load_kernel(tmp_path / "broken.so")
    edited = tmp_path / "edited.cpp"
    edited.write_bytes(SOURCE.read_bytes() + b"\n")
    with pytest.raises(KernelUnavailable, match="another source"):
        load_kernel(source=edited)
    monkeypatch.setattr(choice, "load_kernel", lambda: load_kernel(tmp_path / "missing.so"))
    assert choose_backend()[0] == "torch"


def test_without_a_compiler_nothing_is_built_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / hatch_build.KERNELS[0]
    monkeypatch.setattr(hatch_build, "KERNELS", hatch_build.KERNELS[:1])
    source.parent.mkdir(parents=True)
    source.write_bytes(SOURCE.read_bytes())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert hatch_build.build_kernels(tmp_path) == []
    assert "no C++ compiler" in capsys.readouterr().err
    failing = tmp_path / "c++"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CXX", str(failing))
    assert hatch_build.build_kernels(tmp_path) == []
    assert "not built" in capsys.readouterr().err
    built = source.with_suffix(".so")
    built.write_bytes(hashlib.sha256(source.read_bytes()).hexdigest().encode())
    assert hatch_build.build_kernels(tmp_path) == [built], "what is up to date is not built again"
