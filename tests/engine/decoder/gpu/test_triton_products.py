"""Gates at once with their product, by Triton's interpreter, beside exact ones."""

import pytest
import torch

triton_products = pytest.importorskip("dunlin.engine.decoder.gpu.triton_products", exc_type=ModuleNotFoundError)


def exact(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, up = (rows.double() @ weight.double().t()).chunk(2, dim=1)
    return gate.sigmoid() * gate * up


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "width", "inner"), [(1, 64, 128), (5, 33, 200), (17, 100, 96), (64, 20, 256)])
def test_gates_are_exact_but_for_rounding(dtype: torch.dtype, count: int, width: int, inner: int) -> None:
    random = torch.Generator().manual_seed(count)
    rows = torch.randn(count, inner, generator=random).to(dtype)
    weight = (inner**-0.5 * torch.randn(2 * width, inner, generator=random)).to(dtype)
    found, wanted = triton_products.gated_linear(rows, weight), exact(rows, weight)
    assert found.dtype is dtype
    error = (found.double() - wanted).norm() / wanted.norm()
    assert error < (1e-6 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize("count", [0, 65])
def test_other_numbers_of_rows_are_the_librarys(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_products, "gated_product", None)
    rows, weight = torch.randn(count, 32), torch.randn(16, 32)
    found = triton_products.gated_linear(rows, weight)
    assert found.shape == (count, 8)
    assert torch.allclose(found.double(), exact(rows, weight), atol=1e-5)
