"""Weights of 8 bits times scales: by tensor, by row, by group of inputs, or by block."""

import torch
from torch import Tensor

from dunlin.engine.decoder.quantized.module import ModuleTensors, RowReader, group_index
from dunlin.model.quantization.scaled import ScaledScheme
from dunlin.model.quantization.scheme import groups_of


def open_scaled(scheme: ScaledScheme, module: ModuleTensors) -> RowReader:
    """Weights are `(q - zero) * scale`; without a zero-point `q * scale`."""
    rows_total, inputs = module.shape
    grid = groups_of(rows_total, scheme.block_rows), groups_of(inputs, scheme.group)
    weight, scales = module.tensors["weight"], module.tensors[scheme.scale].float().reshape(grid)
    zeros = module.tensors.get("weight_zero_point")
    zeros = None if zeros is None else zeros.float().reshape(grid)
    columns = group_index(module, None, scheme.group, grid[1])

    def rows(start: int, stop: int) -> Tensor:
        blocks = torch.arange(start, stop) // (scheme.block_rows or rows_total)
        numbers = weight[start:stop].float()
        if zeros is not None:
            numbers -= zeros[blocks][:, columns]
        return numbers * scales[blocks][:, columns]

    return rows
