"""The kernels for batches of few tokens: results, strides, and what they leave to torch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.native.library import KernelUnavailable, source_digest
from dunlin.engine.decoder.native.row_kernels import (
    OTHER_ROWS,
    PRODUCT_ROWS,
    SOURCE,
    RowKernels,
    choose_row_kernels,
    load_row_kernels,
)
from dunlin.engine.decoder.numerics import fast_numerics
from dunlin.engine.decoder.rope import apply_rotary, rotary_angles

try:
    KERNELS = load_row_kernels()
except KernelUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)
MOST = PRODUCT_ROWS[KERNELS.level]
BF16, AMX, AVX512 = 1, 2, 3
LEVELS = {AMX: (BF16, AMX, AVX512), BF16: (BF16, AVX512), AVX512: (AVX512,)}[KERNELS.level]
"""What this processor can multiply by."""
ROUNDING = 2.0**-7


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: Tensor | None, wanted: Tensor) -> bool:
    return found is not None and torch.allclose(found.float(), wanted.float(), rtol=ROUNDING, atol=0.02)


@pytest.mark.parametrize("count", [count for count in (*range(1, 9), 13, 16, 17, 31, 64) if count <= MOST])
@pytest.mark.parametrize(("columns", "inputs"), [(4, 1), (36, 31), (64, 32), (128, 100), (2816, 512)])
def test_a_product_is_torchs(count: int, columns: int, inputs: int) -> None:
    rows, weight, bias = random(count, inputs), random(columns, inputs, seed=2), random(columns, seed=3)
    wanted = rows.float() @ weight.float().T
    for level in LEVELS:
        kernels = RowKernels(KERNELS.library, level)
        if count > PRODUCT_ROWS[level]:
            assert kernels.product(rows, weight, None) is None
            continue
        assert close(kernels.product(rows, weight, None), wanted)
        assert close(kernels.product(rows, weight, bias), wanted + bias.float())


def test_a_products_bits_depend_neither_on_other_rows_nor_on_threads() -> None:
    rows, weight = random(MOST, 200), random(512, 200, seed=2)
    threads = torch.get_num_threads()
    whole = KERNELS.product(rows, weight, None)
    assert whole is not None
    try:
        torch.set_num_threads(2)
        again = KERNELS.product(rows, weight, None)
    finally:
        torch.set_num_threads(threads)
    assert again is not None
    assert torch.equal(whole, again)
    for row in range(MOST):
        alone = KERNELS.product(rows[row : row + 1], weight, None)
        assert alone is not None
        assert torch.equal(alone[0], whole[row])


def test_rows_may_be_a_part_of_wider_ones() -> None:
    wide, weight = random(3, 96), random(8, 64, seed=2)
    assert close(KERNELS.product(wide[:, 16:80], weight, None), wide[:, 16:80].float() @ weight.float().T)
    assert close(
        KERNELS.norm(wide[:, 16:80], weight[0], 1e-5),
        F.rms_norm(wide[:, 16:80].float(), (64,), weight[0].float(), 1e-5),
    )


@pytest.mark.parametrize("width", [1, 16, 40, 512])
def test_norms_and_gates_are_torchs(width: int) -> None:
    rows, weight = 4 * random(5, width), random(width, seed=2)
    assert close(KERNELS.norm(rows, weight, 1e-5), F.rms_norm(rows.float(), (width,), weight.float(), 1e-5))
    both = 30 * random(5, 2 * width)
    gate, up = both.chunk(2, dim=-1)
    assert close(KERNELS.silu_gate(both), F.silu(gate) * up)


def test_a_gate_of_huge_numbers_is_zero_or_the_number() -> None:
    gates = torch.tensor([[-3e38, -100.0, 0.0, 100.0, 3e38] + [1.0] * 5]).bfloat16()
    found = KERNELS.silu_gate(gates)
    assert found is not None
    assert found[0].tolist() == [0.0, 0.0, 0.0, 100.0, float(gates[0, 4])]


@pytest.mark.parametrize(("dim", "pairs"), [(64, 32), (64, 16), (20, 10), (128, 1)])
def test_heads_turn_as_by_torch(dim: int, pairs: int) -> None:
    vectors = random(7, 6, dim)
    turn = rotary_angles(torch.linspace(0.01, 1.0, pairs), torch.arange(3, 10))
    wanted = vectors.clone()
    wanted[:, :4, : 2 * pairs] = apply_rotary(wanted[:, :4, : 2 * pairs], turn)
    assert KERNELS.turn(vectors, 4, turn)
    assert close(vectors, wanted)
    assert torch.equal(vectors[:, 4:], wanted[:, 4:])
    assert torch.equal(vectors[:, :, 2 * pairs :], wanted[:, :, 2 * pairs :])


def test_turns_of_one_of_several_kinds_of_layers_may_have_strides() -> None:
    vectors, both = random(3, 2, 16), torch.randn(3, 2, 2, 1, 8)
    wanted = apply_rotary(vectors.clone(), both[:, 1])
    assert KERNELS.turn(vectors, 2, both[:, 1])
    assert close(vectors, wanted)


def test_what_they_are_not_for_is_left_to_torch() -> None:
    rows, weight = random(2, 64), random(8, 64, seed=2)
    assert KERNELS.product(rows.float(), weight.float(), None) is None
    assert KERNELS.product(rows, weight.float(), None) is None
    assert KERNELS.product(rows, weight[:6], None) is None
    assert KERNELS.product(rows, weight[:, :32], None) is None
    assert KERNELS.product(random(MOST + 1, 64), weight, None) is None
    assert KERNELS.norm(rows.float(), weight[0], 1e-5) is None
    assert KERNELS.norm(random(OTHER_ROWS + 1, 64), weight[0], 1e-5) is None
    assert KERNELS.norm(random(2, 3, 64), weight[0], 1e-5) is None
    assert KERNELS.silu_gate(rows.float()) is None
    assert KERNELS.silu_gate(rows[:, ::2]) is None
    assert not KERNELS.turn(random(2, 3, 16).float(), 3, torch.ones(2, 2, 1, 8))


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, OTHER_ROWS + 1])
def test_numerics_compute_any_number_of_rows(count: int) -> None:
    plain, quick = fast_numerics(), fast_numerics(kernels=KERNELS)
    rows, weight, norm = random(count, 64), random(128, 64, seed=2), random(64, seed=3)
    assert close(quick.linear(rows, weight, None), plain.linear(rows, weight, None))
    assert close(quick.norm(rows, norm, 1e-5), plain.norm(rows, norm, 1e-5))
    assert close(quick.silu_gate(rows), plain.silu_gate(rows))
    turn = rotary_angles(torch.linspace(0.1, 1.0, 8), torch.arange(count))
    ours, theirs = random(count, 4, 16), random(count, 4, 16)
    quick.turn(ours, 3, turn)
    plain.turn(theirs, 3, turn)
    assert close(ours, theirs)


def test_kernels_that_multiply_wrongly_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_row_kernels() is not None

    def doubled(self: RowKernels, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * F.linear(rows, weight, bias)

    monkeypatch.setattr(RowKernels, "product", doubled)
    assert choose_row_kernels() is None


def test_a_library_of_another_source_is_refused(tmp_path: Path) -> None:
    edited = tmp_path / "edited.cpp"
    edited.write_bytes(SOURCE.read_bytes() + b"\n")
    with pytest.raises(KernelUnavailable, match="another source"):
        load_row_kernels(source=edited)
    assert source_digest(SOURCE).encode() in SOURCE.with_suffix(".so").read_bytes()


def test_a_library_is_of_all_headers_too(tmp_path: Path) -> None:
    engine = SOURCE.parents[2]
    headers = sorted(engine.glob("*/native/*.h"))
    assert {each.parents[1].name for each in headers} == {"attention", "decoder"}
    for each in (SOURCE, *headers):
        copy = tmp_path / each.relative_to(engine)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(each.read_bytes())
    copied = tmp_path / SOURCE.relative_to(engine)
    assert load_row_kernels(source=copied).level == KERNELS.level
    (tmp_path / headers[0].relative_to(engine)).write_bytes(headers[0].read_bytes() + b"\n")
    with pytest.raises(KernelUnavailable, match="another source"):
        load_row_kernels(source=copied)
