"""AWQ, GEMM layout: 8 columns of 4 bits in an int32, in the order that its kernel unpacks them."""

import torch
from torch import Tensor

from dunlin.engine.decoder.quantized.module import ModuleTensors, RowReader, group_index
from dunlin.model.quantization.awq import BITS, PACKED, AwqScheme

# Where in a word each of 8 columns stands, in units of 4 bits (AutoAWQ, packing_utils).
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def open_awq(scheme: AwqScheme, module: ModuleTensors) -> RowReader:
    """Weights are `(q - zero) * scale`; the tensors are `[inputs, rows]`."""
    qweight, qzeros, scales = (module.tensors[name] for name in ("qweight", "qzeros", "scales"))
    index = group_index(module, None, scheme.group, len(scales))

    def rows(start: int, stop: int) -> Tensor:
        words = slice(start // PACKED, -(-stop // PACKED))
        numbers, zeros = _unpacked(qweight[:, words]), _unpacked(qzeros[:, words])
        scale = scales[:, start:stop].float()
        return ((numbers - zeros[index]).float() * scale[index]).t()

    return rows


def _unpacked(words: Tensor) -> Tensor:
    shifts = torch.tensor(_PLACES, dtype=torch.int32) * BITS
    return ((words[:, :, None] >> shifts) & (1 << BITS) - 1).flatten(1)
