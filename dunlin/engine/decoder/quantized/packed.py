"""compressed-tensors, pack-quantized: the inputs of a row packed into int32, zero-points packed along the rows."""

import torch
from torch import Tensor

from dunlin.engine.decoder.quantized.module import (
    ModuleTensors,
    RowReader,
    dequantised,
    group_index,
    unpacked,
)
from dunlin.model.quantization.packed import PackedScheme
from dunlin.model.quantization.scheme import INT_BITS


def open_packed(scheme: PackedScheme, module: ModuleTensors) -> RowReader:
    """Weights are `(q - zero) * scale`; both integers have the same constant added, so that it cancels out.

    :raises ModelError: `weight_shape` or `weight_g_idx` belong to other weights.
    """
    tensors, inputs = module.tensors, module.shape[1]
    packed, scales, zeros = tensors["weight_packed"], tensors["weight_scale"], tensors.get("weight_zero_point")
    shape = tensors.get("weight_shape")
    if shape is not None and tuple(shape.tolist()) != module.shape:
        raise module.fault(f"has a `weight_shape` of {tuple(shape.tolist())}, config.json implies {module.shape}")
    index = group_index(module, _ordered(tensors.get("weight_g_idx")), scheme.group, scales.shape[1])
    per_word, middle = INT_BITS // scheme.bits, torch.tensor([[1 << scheme.bits - 1]])

    def rows(start: int, stop: int) -> Tensor:
        numbers = unpacked(packed[start:stop], scheme.bits).flatten(1)[:, :inputs]
        scale = scales[start:stop]
        if zeros is None:
            return dequantised(numbers, middle.expand(scale.shape), scale, index)
        words = zeros[start // per_word : -(-stop // per_word)]
        zero = unpacked(words.t(), scheme.bits).flatten(1).t()[: stop - start]
        return dequantised(numbers, zero, scale, index)

    return rows


def _ordered(index: Tensor | None) -> Tensor | None:
    """-1 stands for groups in order."""
    return None if index is None or bool((index == -1).any()) else index
