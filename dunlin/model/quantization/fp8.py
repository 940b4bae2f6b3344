"""`quant_method` fp8 (by tensor, or by block as DeepSeek and Qwen3 have it) fbgemm_fp8 (by row), and modelopt."""

from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.options import refuse_options
from dunlin.model.quantization.scaled import FP8, ScaledScheme
from dunlin.model.quantization.scheme import AllModules, Quantization


def read_fp8(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` fp8; faults go to the reader. The one scale of a tensor is
    called `weight_scale` by AutoFP8 and `weight_scale_inv` by transformers; both are multiplied by.
    """
    values = reader.values
    refuse_options(reader, "fmt", values.get("fmt", "e4m3"), {"e4m3", "float8_e4m3fn"})
    block = values.get("weight_block_size")
    if block is None:
        return Quantization("fp8", ((AllModules(), ScaledScheme(FP8, 0, 0, "weight_scale", "weight_scale_inv")),))
    rows, inputs = read_block(reader, "weight_block_size", block)
    return Quantization("fp8", ((AllModules(), ScaledScheme(FP8, rows, inputs, "weight_scale_inv")),))


def read_fbgemm_fp8(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` fbgemm_fp8: a scale for each row."""
    return Quantization("fbgemm_fp8", ((AllModules(), ScaledScheme(FP8, 1, 0)),))


def read_block(reader: ConfigReader, key: str, value: object) -> tuple[int, int]:
    """(rows, inputs) that share a scale."""
    if isinstance(value, list | tuple) and len(value) == 2:
        rows, inputs = value
        if all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value):
            return rows, inputs
    reader.fault(f"`{key}` of quantised weights must be two positive integers, not {value!r}")
    return 1, 1


def read_modelopt(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` modelopt, of which FP8 by tensor and by row are read."""
    nested = reader.values.get("quantization")
    values = nested if isinstance(nested, dict) else reader.values
    algorithm = values.get("quant_algo")
    name = algorithm.upper() if isinstance(algorithm, str) else algorithm
    refuse_options(reader, "quant_algo", name, {"FP8", "FP8_PER_CHANNEL_PER_TOKEN"})
    return Quantization("modelopt", ((AllModules(), ScaledScheme(FP8, 0 if name == "FP8" else 1, 0)),))
