"""The table of quantisation methods by `quant_method`: those that are read, and why the others are not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.autoround import read_autoround
from dunlin.model.quantization.awq import read_awq
from dunlin.model.quantization.compressed_tensors import read_compressed_tensors
from dunlin.model.quantization.fp8 import read_fbgemm_fp8, read_fp8, read_modelopt
from dunlin.model.quantization.gptq import read_gptq
from dunlin.model.quantization.scheme import Quantization

KEYS = ("quantization_config", "compression_config")


@dataclass(frozen=True, slots=True)
class QuantizationMethod:
    """`read` reads its `quantization_config`; `reads` and `refuses` say which of its layouts are read and not."""

    read: Callable[[ConfigReader], Quantization]
    reads: str
    refuses: str


METHODS: Mapping[str, QuantizationMethod] = {
    "awq": QuantizationMethod(
        read_awq, "4 bits with zero-points, any group, layout `gemm`", "`gemv`, `gemv_fast`, `marlin`, llm-awq's own"
    ),
    "gptq": QuantizationMethod(
        read_gptq,
        "2, 4 and 8 bits, any group, symmetric or not, `desc_act` or not, zero-points of `gptq` and `gptq_v2`",
        "3 bits, `marlin`, `dynamic` bits by module",
    ),
    "compressed-tensors": QuantizationMethod(
        read_compressed_tensors,
        "`pack-quantized` of 4 and 8 bits (by group or row, `actorder`, zero-points); `int-quantized` and"
        " `float-quantized` of 8 bits (by tensor, row, group or block); several of these by module",
        "`nvfp4` and `mxfp` formats, `marlin-24`, sparse formats, other bits, transforms",
    ),
    "fp8": QuantizationMethod(
        read_fp8, "e4m3 by block (`weight_block_size`) or by tensor, as DeepSeek, Qwen3, AutoFP8 have it", "e5m2"
    ),
    "fbgemm_fp8": QuantizationMethod(read_fbgemm_fp8, "e4m3 by row", "–"),
    "modelopt": QuantizationMethod(
        read_modelopt, "`FP8` (by tensor) and `FP8_PER_CHANNEL_PER_TOKEN`", "NVFP4, MXFP8 and others"
    ),
    "auto-round": QuantizationMethod(
        read_autoround,
        "`packing_format` `auto_round:auto_gptq` and `auto_round:auto_awq`",
        "other formats, bits by module, rotations",
    ),
}
REFUSED: Mapping[str, str] = {
    "aqlm": "its weights are indices into learnt codebooks",
    "bitnet": "its activations are quantised as it was trained, so that plain products give another text",
    "bitsandbytes": "its 4-bit blocks (nf4, fp4) and its outliers in fp16 are its kernels' own",
    "eetq": "its weights lie in an order for one kind of GPU",
    "fouroversix": "its 4-bit floats are for GPUs that compute with them",
    "fp_quant": "its weights are rotated, and its kernels rotate the activations",
    "gemma": "its own packing of weights, activations and KV is not read",
    "gguf": "it is a file format of its own (llama.cpp)",
    "higgs": "its weights are rotated and indices into grids",
    "hqq": "its tensors are laid out by the settings of its quantiser",
    "metal": "its packing for Apple's GPUs is not read",
    "mxfp4": "its 4-bit floats with scales by 32 are not read",
    "mxfp8": "its 8-bit floats with scales by 32 are not read",
    "nvfp4": "its 4-bit floats with scales of two levels are not read",
    "quanto": "its tensors are its own containers",
    "quark": "its layouts are not read",
    "sinq": "its weights have scales along both axes",
    "spqr": "its outliers are sparse tensors",
    "torchao": "its tensors are its own containers, of a layout by version",
    "vptq": "its weights are indices into vectors",
}


def read_quantization(reader: ConfigReader) -> Quantization | None:
    """What a `config.json` says of quantised weights; None: nothing, or what is refused; faults go to the reader."""
    key = next((key for key in KEYS if reader.values.get(key) is not None), None)
    if key is None:
        return None
    values = reader.values[key]
    if not isinstance(values, dict):
        reader.fault(f"`{key}` must be an object, not {values!r}")
        return None
    method = values.get("quant_method")
    if isinstance(method, str) and method in METHODS:
        return METHODS[method].read(ConfigReader(reader.path, values, reader.faults))
    why = REFUSED.get(method, "the method is not known") if isinstance(method, str) else "the method is not named"
    remedy = f"use the unquantised checkpoint, or one quantised by {', '.join(METHODS)}"
    reader.fault(f"weights quantised by {method} (`{key}`) are not supported: {why}", remedy)
    return None
