"""AWQ, GEMM layout: 8 columns of 4 bits in an int32, in the order that its kernel unpacks them."""

from torch import Tensor

from dunlin.engine.decoder.quantized.module import ModuleTensors, RowReader, dequantised, group_index, unpacked
from dunlin.model.quantization.awq import BITS, PACKED, AwqScheme


def open_awq(scheme: AwqScheme, module: ModuleTensors) -> RowReader:
    """Weights are `(q - zero) * scale`; the tensors are `[inputs or groups, rows]`."""
    qweight, qzeros, scales = (module.tensors[name] for name in ("qweight", "qzeros", "scales"))
    index = group_index(module, None, scheme.group, len(scales))

    def rows(start: int, stop: int) -> Tensor:
        words = slice(start // PACKED, stop // PACKED)
        numbers, zeros = _columns(qweight[:, words]), _columns(qzeros[:, words])
        return dequantised(numbers.t().contiguous(), zeros.t(), scales[:, start:stop].t(), index)

    return rows


def _columns(words: Tensor) -> Tensor:
    """Column 2k of a word is its number k, column 2k + 1 its number k + 4 (AutoAWQ, packing_utils)."""
    numbers = unpacked(words, BITS)
    return numbers.view(*words.shape, 2, 4).transpose(-1, -2).flatten(1)
