"""Makes references.json: small modules of random bits, and the weights that others' own code reads from them.

In an environment of its own: python -m venv V && V/bin/pip install torch transformers numpy safetensors, then with
--no-deps autoawq==0.2.9 auto-gptq==0.7.1 auto-round==0.16.1 compressed-tensors==0.20.0, and what these import; then
PYTHONPATH=. V/bin/python tests/engine/decoder/quantized/make_references.py
"""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

ROWS, INPUTS, GROUP = 16, 32, 8
WRITTEN = Path(__file__).parent / "references.json"


def file_of(package: str, path: str) -> ModuleType:
    """One file of a package whose other files need more than is installed."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    spec = importlib.util.spec_from_file_location(path, Path(found.submodule_search_locations[0]) / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.5


def awq() -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    groups = INPUTS // GROUP
    given = {"qweight": words(INPUTS, ROWS // 8), "qzeros": words(groups, ROWS // 8), "scales": scales(groups, ROWS)}
    read = file_of("awq", "utils/packing_utils.py").dequantize_gemm(*given.values(), 4, GROUP)
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP}, given, read.t()


def gptq(bits: int) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    """`qlinear_cuda` reads `g_idx`; the product with the identity is the weights."""
    groups, packed = INPUTS // GROUP, 32 // bits
    numbers = torch.randint(0, 2**bits - 1, (groups, ROWS // packed, packed), dtype=torch.int64)
    zeros = (numbers << (torch.arange(packed) * bits)).sum(-1)
    given = {
        "qweight": words(INPUTS // packed, ROWS),
        "qzeros": (zeros - ((zeros >> 31) << 32)).to(torch.int32),
        "scales": scales(groups, ROWS),
        "g_idx": (torch.randperm(INPUTS) // GROUP).to(torch.int32),
    }
    linear = file_of("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py").QuantLinear(bits, GROUP, INPUTS, ROWS, False)
    for name, tensor in given.items():
        setattr(linear, name, tensor)
    values = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": True}
    return values, given, linear(torch.eye(INPUTS)).t()


def autoround(bits: int) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    _, given, _ = gptq(bits)
    del given["g_idx"]
    linear = file_of("auto_round_extension", "torch/qlinear_torch_zp.py").QuantLinear(bits, GROUP, INPUTS, ROWS, False)
    for name, tensor in given.items():
        setattr(linear, name, tensor)
    values = {"quant_method": "auto-round", "bits": bits, "group_size": GROUP, "packing_format": "auto_round:gptq"}
    return values, given, linear(torch.eye(INPUTS)).t()


def compressed(form: str, asymmetric: bool = False, **weights: Any) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    registry = importlib.import_module("compressed_tensors.compressors.base").BaseCompressor
    schemes = importlib.import_module("compressed_tensors.quantization").QuantizationScheme

    group = {"targets": ["Linear"], "weights": {"symmetric": not asymmetric, **weights}}
    given = _compressed_tensors(form, asymmetric, **weights)
    scheme = schemes.model_validate(group)
    if form == "float-quantized":
        scheme.input_activations = scheme.weights
    read = registry.get_value_from_registry(form).decompress(dict(given), scheme)["weight"]
    values = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return values, given, read


def _compressed_tensors(form: str, asymmetric: bool, **weights: Any) -> dict[str, Tensor]:
    bits = weights["num_bits"]
    grid = {
        "tensor": (1,),
        "channel": (ROWS, 1),
        "group": (ROWS, INPUTS // GROUP),
        "block": (ROWS // 8, INPUTS // 16),
    }[weights["strategy"]]
    given = {"weight_scale": scales(*grid)}
    if form == "pack-quantized":
        given |= {"weight_packed": words(ROWS, INPUTS * bits // 32), "weight_shape": torch.tensor([ROWS, INPUTS])}
        zeros = words(ROWS * bits // 32, grid[1]) if asymmetric else None
    else:
        numbers = torch.randint(-128, 128, (ROWS, INPUTS)).to(torch.int8)
        numbers = numbers.to(torch.float32).to(torch.float8_e4m3fn) if weights["type"] == "float" else numbers
        given["weight"] = numbers
        zeros = torch.randint(-128, 128, grid).to(torch.int8) if asymmetric else None
    if zeros is not None:
        given["weight_zero_point"] = zeros
    return given


def fp8_block() -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    weight = torch.randn(ROWS, INPUTS).to(torch.float8_e4m3fn)
    given = {"weight": weight, "weight_scale_inv": scales(ROWS // 8, INPUTS // 16)}
    read = (
        importlib.import_module("transformers.integrations.finegrained_fp8")
        .Fp8Dequantize(None)
        .convert({name: [tensor] for name, tensor in given.items()})["weight"]
    )
    assert isinstance(read, Tensor)
    return {"quant_method": "fp8", "weight_block_size": [8, 16]}, given, read


CASES = {
    "awq": awq,
    "gptq 2 bits": lambda: gptq(2),
    "gptq 4 bits": lambda: gptq(4),
    "gptq 8 bits": lambda: gptq(8),
    "auto-round 4 bits": lambda: autoround(4),
    "packed 4 bits": lambda: compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP),
    "packed 4 bits asymmetric": lambda: compressed(
        "pack-quantized", True, num_bits=4, type="int", strategy="group", group_size=GROUP
    ),
    "packed 8 bits by row": lambda: compressed("pack-quantized", True, num_bits=8, type="int", strategy="channel"),
    "int8 by row": lambda: compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
    "int8 by row asymmetric": lambda: compressed("int-quantized", True, num_bits=8, type="int", strategy="channel"),
    "fp8 by tensor": lambda: compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
    "fp8 by row": lambda: compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    "fp8 by block": lambda: compressed(
        "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[8, 16]
    ),
    "fp8 by block, DeepSeek": fp8_block,
}


def written(tensor: Tensor) -> dict[str, Any]:
    """Its bytes in hexadecimal, little-endian."""
    held = tensor.contiguous()
    bits = held.view(torch.uint8).numpy().tobytes() if held.ndim else held.view(1).view(torch.uint8).numpy().tobytes()
    return {"dtype": str(held.dtype).removeprefix("torch."), "shape": list(held.shape), "bytes": bits.hex()}


def main() -> None:
    cases = {}
    for name, make in CASES.items():
        torch.manual_seed(18)
        values, given, read = make()
        assert (read.shape, read.dtype) == ((ROWS, INPUTS), torch.float32), name
        tensors = {each: written(tensor) for each, tensor in given.items()}
        cases[name] = {"quantization_config": values, "tensors": tensors, "weight": written(read)}
    WRITTEN.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
