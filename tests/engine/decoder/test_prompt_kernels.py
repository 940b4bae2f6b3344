"""The kernels for batches of many tokens: results, strides, and what they leave to torch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.kv_numbers import put_slots
from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.native import prompt_kernels
from dunlin.engine.decoder.native.prompt_kernels import (
    ANY,
    BF16_DOT,
    FP32,
    LEAST_ROWS,
    SOURCE,
    TILES,
    PromptKernels,
    choose_prompt_kernels,
    load_prompt_kernels,
)
from dunlin.engine.decoder.numerics import fast_numerics
from dunlin.engine.decoder.rope import apply_rotary, rotary_angles

try:
    KERNELS = load_prompt_kernels()
except KernelUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)
LEVELS = pytest.mark.parametrize(
    "kernels", [replace(KERNELS, level=level) for level in sorted({FP32, BF16_DOT, KERNELS.level})]
)
"""The pairs of bf16 are multiplied in fp32 where the processor has no instruction for them."""
ROUNDING = 2.0**-7


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: Tensor | None, wanted: Tensor) -> bool:
    return found is not None and torch.allclose(found.float(), wanted.float(), rtol=ROUNDING, atol=0.02)


@LEVELS
@pytest.mark.parametrize("count", [LEAST_ROWS, 15, 16, 17, 32, 33, 100, 513])
@pytest.mark.parametrize(("columns", "inputs"), [(1, 1), (12, 192), (13, 31), (49, 193), (130, 385), (40, 2150)])
def test_a_product_is_torchs(kernels: PromptKernels, count: int, columns: int, inputs: int) -> None:
    """Around the edges of vectors, panels, strips, tasks, blocks of inputs and chunks of rows."""
    rows, weight, bias = random(count, inputs), random(columns, inputs, seed=2), random(columns, seed=3)
    wanted = rows.float() @ weight.float().T
    assert close(kernels.product(rows, weight, None), wanted)
    assert close(kernels.product(rows, weight, bias), wanted + bias.float())


@pytest.mark.skipif(KERNELS.level != TILES, reason="this processor has no matrix unit")
@pytest.mark.parametrize("count", [LEAST_ROWS, 16, 17, 33, 300, 513])
@pytest.mark.parametrize(("columns", "inputs"), [(1, 1), (13, 31), (32, 64), (49, 193), (40, 2150)])
def test_residuals_and_gates_are_computed_with_the_product(count: int, columns: int, inputs: int) -> None:
    rows, weight, hidden = (
        random(count, inputs),
        random(2 * columns, inputs, seed=2),
        random(count, 3 * columns, seed=3),
    )
    product, lets = (KERNELS.product(rows, part, None) for part in weight.chunk(2))
    gated, among = KERNELS.gated_product(rows, weight), slice(columns, 2 * columns)
    assert product is not None
    assert lets is not None
    assert gated is not None
    assert close(gated, F.silu(product.float()) * lets.float())
    added, apart, around = hidden.clone(), hidden.clone(), hidden[:, among]
    assert KERNELS.product_onto(added[:, among], added[:, among], rows, weight[:columns])
    assert KERNELS.product_onto(apart[:, among], around, rows, weight[:columns])
    assert torch.equal(added[:, among], around + product)
    assert torch.equal(apart, added)
    assert KERNELS.gated_into(apart[:, among], rows, weight[:columns], weight[columns:])
    assert torch.equal(apart[:, among], gated)
    for outside in (slice(columns), slice(2 * columns, None)):
        assert torch.equal(added[:, outside], hidden[:, outside])
        assert torch.equal(apart[:, outside], hidden[:, outside])


@pytest.mark.skipif(KERNELS.level != TILES, reason="this processor has no matrix unit")
def test_a_gate_that_is_shut_lets_nothing_through_and_no_number_stays_none() -> None:
    rows, gates = torch.zeros(16, 32, dtype=torch.bfloat16), torch.zeros(32, 32, dtype=torch.bfloat16)
    given = torch.tensor([-3e38, -1000.0, -88.0, -1.0, 0.0, 1.0, 100.0, float("nan")])
    for row, number in enumerate(given):
        rows[row, 0], rows[row, 1] = number, 3.0
    gates[:, 0] = 1.0
    ups = torch.zeros_like(gates)
    ups[:, 1] = 1.0
    found = KERNELS.gated_product(rows, torch.cat((gates, ups)))
    assert found is not None
    wanted = (given * given.sigmoid() * 3.0)[:, None].expand(8, 32)
    assert torch.allclose(found[:8].float(), wanted, rtol=ROUNDING, atol=1e-30, equal_nan=True)


def test_without_tiles_residuals_and_gates_are_by_parts() -> None:
    rows, weight = random(20, 64), random(16, 64, seed=2)
    pairs = replace(KERNELS, level=BF16_DOT)
    assert pairs.gated_product(rows, weight) is None
    into = random(20, 16)
    assert not pairs.product_onto(into, into, rows, weight)
    assert not pairs.gated_into(into[:, :8], rows, weight[:8], weight[8:])
    numerics = fast_numerics(prompts=pairs)
    by_parts = numerics.gated_linear, numerics.gated_into, numerics.linear_onto, numerics.linear_onto_into
    assert by_parts == (None,) * 4


@pytest.mark.skipif(KERNELS.level != TILES, reason="this processor has no matrix unit")
def test_what_lies_otherwise_is_not_computed_with_the_product() -> None:
    rows, weight, into = random(20, 64), random(16, 64, seed=2), random(20, 16)
    assert not KERNELS.product_onto(into, random(20, 32)[:, ::2], rows, weight)
    assert not KERNELS.product_onto(into, random(20, 48)[:, :16], rows, weight)
    assert not KERNELS.product_onto(into, into.float(), rows, weight)
    assert not KERNELS.gated_into(into[:, ::2], rows, weight[:8], weight[8:])
    assert not KERNELS.gated_into(into[:, :8].float(), rows, weight[:8], weight[8:])
    assert KERNELS.gated_product(rows, weight[:15]) is None


@LEVELS
def test_a_products_bits_depend_on_its_own_row_and_column(kernels: PromptKernels) -> None:
    rows, weight = random(70, 200), random(300, 200, seed=2)
    threads = torch.get_num_threads()
    whole = kernels.product(rows, weight, None)
    assert whole is not None
    try:
        torch.set_num_threads(2)
        again = kernels.product(rows, weight, None)
    finally:
        torch.set_num_threads(threads)
    assert again is not None
    assert torch.equal(whole, again)
    for first, last in ((0, 8), (5, 40), (62, 70)):
        part = kernels.product(rows[first:last], weight, None)
        assert part is not None
        assert torch.equal(part, whole[first:last])
    columns = kernels.product(rows, weight[64:97], None)
    assert columns is not None
    assert torch.equal(columns, whole[:, 64:97])


def test_parts_of_wider_rows_and_results() -> None:
    wide, weight = random(40, 96), random(20, 64, seed=2)
    into = torch.full((40, 50), 7.0).bfloat16()
    assert KERNELS.product_into(into[:, 10:30], wide[:, 16:80], weight, None)
    assert close(into[:, 10:30], wide[:, 16:80].float() @ weight.float().T)
    assert (into[:, :10] == 7).all()
    assert (into[:, 30:] == 7).all()
    assert close(
        KERNELS.norm(wide[:, 16:80], weight[0], 1e-5),
        F.rms_norm(wide[:, 16:80].float(), (64,), weight[0].float(), 1e-5),
    )


def test_what_is_no_number_stays_in_its_row() -> None:
    rows, weight = random(40, 64), random(32, 64, seed=2)
    rows[3, 5], rows[4, 6] = float("nan"), float("inf")
    found = KERNELS.product(rows, weight, None)
    assert found is not None
    assert found[3].isnan().all()
    assert not found[4].isfinite().any()
    assert found[5:].isfinite().all()


@pytest.mark.parametrize("width", [1, 16, 40, 512])
@pytest.mark.parametrize("count", [1, 16, 100])
def test_norms_and_gates_are_torchs(count: int, width: int) -> None:
    rows, weight = 4 * random(count, width), random(width, seed=2)
    assert close(KERNELS.norm(rows, weight, 1e-5), F.rms_norm(rows.float(), (width,), weight.float(), 1e-5))
    both = 30 * random(count, 2 * width)
    gate, up = both.chunk(2, dim=-1)
    assert close(KERNELS.silu_gate(both), F.silu(gate) * up)


def test_a_gate_of_huge_numbers_is_zero_or_the_number() -> None:
    gates = torch.tensor([[-3e38, -100.0, 0.0, 100.0, 3e38, float("nan")] + [1.0] * 6]).bfloat16()
    found = KERNELS.silu_gate(gates)
    assert found is not None
    assert found[0, :5].tolist() == [0.0, 0.0, 0.0, 100.0, float(gates[0, 4])]
    assert found[0, 5].isnan()


@pytest.mark.parametrize(("dim", "pairs"), [(64, 32), (64, 16), (20, 10), (128, 1)])
def test_heads_turn_as_by_torch(dim: int, pairs: int) -> None:
    vectors = random(70, 6, dim)
    turn = rotary_angles(torch.linspace(0.01, 1.0, pairs), torch.arange(3, 73))
    wanted = vectors.clone()
    wanted[:, :4, : 2 * pairs] = apply_rotary(wanted[:, :4, : 2 * pairs], turn)
    assert KERNELS.turn(vectors, 4, turn)
    assert close(vectors, wanted)
    assert torch.equal(vectors[:, 4:], wanted[:, 4:])
    assert torch.equal(vectors[:, :, 2 * pairs :], wanted[:, :, 2 * pairs :])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_keys_and_values_are_put_where_torch_puts_them(dtype: torch.dtype) -> None:
    fused, slots = random(20, 10, 16).to(dtype), torch.randperm(50)[:20]
    ours, theirs = (torch.zeros(50, 2, 2, 16, dtype=dtype) for _ in range(2))
    assert KERNELS.put(ours, slots, fused[:, 6:])
    put_slots(theirs, slots, fused[:, 6:])
    assert torch.equal(ours, theirs)


def test_what_they_are_not_for_is_left_to_torch() -> None:
    rows, weight, into = random(40, 64), random(8, 64, seed=2), random(40, 8)
    assert KERNELS.product(rows.float(), weight.float(), None) is None
    assert KERNELS.product(rows, weight.float(), None) is None
    assert KERNELS.product(rows, weight[:, :32], None) is None
    assert KERNELS.product(rows[None], weight, None) is None
    assert KERNELS.product(rows[: LEAST_ROWS - 1], weight, None) is None
    assert replace(KERNELS, most_rows=len(rows) - 1).product(rows, weight, None) is None
    assert not KERNELS.product_into(into.t().contiguous().t(), rows, weight, None)
    assert KERNELS.norm(rows.float(), weight[0], 1e-5) is None
    assert KERNELS.norm(rows[None], weight[0], 1e-5) is None
    assert KERNELS.silu_gate(rows[:, ::2]) is None
    assert not KERNELS.turn(random(2, 3, 16).float(), 3, torch.ones(2, 2, 1, 8))
    kv, slots = torch.zeros(9, 2, 1, 16), torch.arange(2)
    assert not KERNELS.put(kv, slots, random(2, 2, 16))
    assert not KERNELS.put(kv[::2], slots, torch.zeros(2, 2, 16))
    assert not KERNELS.put(kv, slots, torch.zeros(2, 2, 32)[:, :, ::2])


def test_numerics_compute_with_them_and_without() -> None:
    plain, quick = fast_numerics(), fast_numerics(prompts=KERNELS)
    for dtype in (torch.bfloat16, torch.float32):
        rows, weight, norm = (each.to(dtype) for each in (random(70, 64), random(128, 64, seed=2), random(64, seed=3)))
        assert close(quick.linear(rows, weight, None), plain.linear(rows, weight, None))
        assert close(quick.norm(rows, norm, 1e-5), plain.norm(rows, norm, 1e-5))
        assert close(quick.silu_gate(rows), plain.silu_gate(rows))
        ours, theirs = (torch.zeros(70, 200, dtype=dtype) for _ in range(2))
        quick.linear_into(ours[:, 20:148], rows, weight, None)
        plain.linear_into(theirs[:, 20:148], rows, weight, None)
        assert close(ours, theirs)
        if KERNELS.level == TILES:
            assert quick.linear_onto is not None
            assert quick.gated_linear is not None
            assert quick.linear_onto_into is not None
            assert quick.gated_into is not None
            hidden, into = random(70, 128, seed=4).to(dtype), random(70, 128, seed=5).to(dtype)
            onto = hidden + plain.linear(rows, weight, None)
            assert close(quick.linear_onto(hidden.clone(), rows, weight), onto)
            quick.linear_onto_into(into, hidden, rows, weight)
            assert close(into, onto)
            gates = plain.silu_gate(plain.linear(rows, weight, None))
            assert close(quick.gated_linear(rows, weight), gates)
            quick.gated_into(into[:, :64], rows, weight[:64], weight[64:])
            assert close(into[:, :64], gates)
        slots, fused = torch.randperm(99)[:70], rows.view(70, 8, 8)
        kv = [torch.zeros(99, 2, 2, 8, dtype=dtype) for _ in range(2)]
        quick.put(kv[0], slots, fused[:, 4:])
        plain.put(kv[1], slots, fused[:, 4:])
        assert torch.equal(*kv)


def test_kernels_that_multiply_wrongly_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_prompt_kernels() is not None

    def doubled(self: PromptKernels, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * F.linear(rows, weight, bias)

    monkeypatch.setattr(PromptKernels, "product", doubled)
    assert choose_prompt_kernels() is None


@pytest.mark.parametrize(
    ("times", "most_rows"),
    [([(1.0, 2.0)], ANY), ([(1.0, 1.0), (1.0, 2.0)], 128), ([(2.0, 1.0), (1.0, 2.0)], 128), ([(1.0, 1.0)] * 2, 0)],
)
def test_products_of_pairs_are_the_kernels_where_they_are_faster(
    times: list[tuple[float, float]], most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = replace(KERNELS, level=BF16_DOT)
    monkeypatch.setattr(prompt_kernels, "load_prompt_kernels", lambda: pairs)
    monkeypatch.setattr(prompt_kernels, "least_s", lambda _, turns: times.pop(0))
    chosen = choose_prompt_kernels()
    assert chosen is not None
    assert chosen.most_rows == most_rows


def test_products_in_fp32_are_the_kernels_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_kernels, "load_prompt_kernels", lambda: replace(KERNELS, level=FP32))
    chosen = choose_prompt_kernels()
    assert chosen is not None
    assert chosen.most_rows == ANY


def test_a_library_of_another_source_is_refused(tmp_path: Path) -> None:
    edited = tmp_path / "edited.cpp"
    edited.write_bytes(SOURCE.read_bytes() + b"\n")
    with pytest.raises(KernelUnavailable, match="another source"):
        load_prompt_kernels(source=edited)
