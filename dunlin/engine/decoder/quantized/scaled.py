"""Weights of 8 bits times scales: by tensor, by row, by group of inputs, or by block."""

import torch
from torch import Tensor

from dunlin.engine.decoder.quantized.module import ModuleTensors, RowReader, dequantised, group_index
from dunlin.model.quantization.scaled import ScaledScheme
from dunlin.model.quantization.scheme import groups_of


def open_scaled(scheme: ScaledScheme, module: ModuleTensors) -> RowReader:
    """Weights are `(q - zero) * scale`; without a zero-point `q * scale`."""
    total, inputs = module.shape
    grid = groups_of(total, scheme.block_rows), groups_of(inputs, scheme.group)
    weight, scales = module.tensors["weight"], module.tensors[scheme.scale].float().reshape(grid)
    zeros = module.tensors.get("weight_zero_point")
    zeros = None if zeros is None else zeros.reshape(grid)
    index = group_index(module, None, scheme.group, grid[1])

    def rows(start: int, stop: int) -> Tensor:
        blocks = torch.arange(start, stop) // (scheme.block_rows or total)
        numbers = weight[start:stop]
        if numbers.dtype is torch.float8_e4m3fn:
            numbers = _values(numbers)
        return dequantised(numbers, None if zeros is None else zeros[blocks], scales[blocks], index)

    return rows


def _values(numbers: Tensor) -> Tensor:
    """8-bit floats as float32, by a table: torch's own conversion takes six times as long."""
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    places = numbers.contiguous().view(torch.uint8).flatten().int()
    return table.index_select(0, places).view(numbers.shape)
