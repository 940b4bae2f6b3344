"""The reader of quantised weights for each scheme."""

from collections.abc import Callable, Mapping
from typing import Any

from dunlin.engine.decoder.quantized.awq import open_awq
from dunlin.engine.decoder.quantized.gptq import open_gptq
from dunlin.engine.decoder.quantized.module import ModuleTensors, RowReader
from dunlin.engine.decoder.quantized.packed import open_packed
from dunlin.engine.decoder.quantized.scaled import open_scaled
from dunlin.model.quantization.awq import AwqScheme
from dunlin.model.quantization.gptq import GptqScheme
from dunlin.model.quantization.packed import PackedScheme
from dunlin.model.quantization.scaled import ScaledScheme
from dunlin.model.quantization.scheme import WeightScheme

OPENERS: Mapping[type, Callable[[Any, ModuleTensors], RowReader]] = {
    AwqScheme: open_awq,
    GptqScheme: open_gptq,
    PackedScheme: open_packed,
    ScaledScheme: open_scaled,
}


def open_rows(scheme: WeightScheme, module: ModuleTensors) -> RowReader:
    """What reads the weights of `module`, which are stored as `scheme` says.

    :raises ModelError: its tensors hold what no writer of them means.
    """
    return OPENERS[type(scheme)](scheme, module)
