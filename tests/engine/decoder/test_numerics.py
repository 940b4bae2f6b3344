"""The engine's product is torch's, whatever the number of rows, with and without bias, in both dtypes."""

import pytest
import torch
from torch.nn import functional as F

from dunlin.engine.decoder.numerics import linear


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 33])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.5)])
def test_it_is_the_same_product(rows: int, has_bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    draw = torch.Generator().manual_seed(rows)
    batch, weight = (torch.randn(n, 48, generator=draw).to(dtype) for n in (rows, 80))
    bias = torch.randn(80, generator=draw).to(dtype) if has_bias else None
    assert torch.allclose(linear(batch, weight, bias), F.linear(batch, weight, bias), atol=tolerance)
