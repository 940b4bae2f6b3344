"""GPTQ: the inputs of a row packed into int32, zero-points packed along the rows, groups named by `g_idx`."""

from torch import Tensor

from dunlin.engine.decoder.quantized.module import (
    ModuleTensors,
    RowReader,
    dequantised,
    group_index,
    unpacked,
)
from dunlin.model.quantization.gptq import GptqScheme
from dunlin.model.quantization.scheme import INT_BITS


def open_gptq(scheme: GptqScheme, module: ModuleTensors) -> RowReader:
    """Weights are `(q - zero) * scale`, a zero-point being what is stored and the format's offset.

    :raises ModelError: `g_idx` names a group that is not there.
    """
    qweight, qzeros, scales = (module.tensors[name] for name in ("qweight", "qzeros", "scales"))
    index = group_index(module, module.tensors.get("g_idx"), scheme.group, len(scales))
    packed, most = INT_BITS // scheme.bits, (1 << scheme.bits) - 1

    def rows(start: int, stop: int) -> Tensor:
        zeros = unpacked(qzeros[:, start // packed : stop // packed], scheme.bits).flatten(1).t()
        if scheme.zero_offset and (zeros == most).any():
            # Readers differ: 0, or a carry into the next. No quantiser means it.
            raise module.fault("has a zero-point that `checkpoint_format` gptq cannot hold (gptq_v2 can)")
        numbers = unpacked(qweight[:, start:stop].t(), scheme.bits).flatten(1)
        return dequantised(numbers, zeros + scheme.zero_offset, scales[:, start:stop].t(), index)

    return rows
