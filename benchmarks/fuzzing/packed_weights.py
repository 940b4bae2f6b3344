"""Packs a dense checkpoint's products in each format that is read, by its published layout."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

Packed = tuple[dict[str, Tensor], Tensor]
"""Tensors by the last part of their names; the weights `[rows, inputs]` that they stand for, float32."""
Packer = Callable[[Tensor, torch.Generator], Packed]
GROUP = 32
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Format:
    """`config` is its `quantization_config`; `pack` does one product."""

    config: dict[str, Any]
    pack: Packer
    plain: tuple[str, ...] = ("lm_head", "mlp.gate", "block_sparse_moe.gate")
    """Products that stay as they are, by the end of their names."""
    key: str = "quantization_config"


def quantise(dense: Path, packed: Path, plain: Path, form: Format) -> None:
    """From the checkpoint `dense`: `packed` in the format, and `plain` with the same weights as float32."""
    generator = torch.Generator().manual_seed(7)
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in sorted(_tensors(dense).items()):
        module = name.removesuffix(".weight")
        if tensor.ndim == 2 and "embed" not in name and not module.endswith(form.plain):
            tensors, meant[name] = form.pack(tensor, generator)
            stored |= {f"{module}.{last}": each.contiguous() for last, each in tensors.items()}
        else:
            stored[name] = meant[name] = tensor
    _write(dense, packed, stored, {form.key: form.config})
    _write(dense, plain, {name: tensor.contiguous() for name, tensor in meant.items()}, {})


def _tensors(directory: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        found |= safetensors.torch.load(path.read_bytes())
    return found


def _write(like: Path, directory: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (like / name).is_file():
            (directory / name).write_bytes((like / name).read_bytes())
    config = json.loads((like / "config.json").read_text()) | values
    (directory / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def shard(directory: Path) -> None:
    """In three files and an index, so that a module's tensors lie apart."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    files = {f"model-{at}.safetensors": sorted(tensors)[at::3] for at in range(3)}
    for file, names in files.items():
        safetensors.torch.save_file({name: tensors[name] for name in names}, directory / file)
    index = {"weight_map": {name: file for file, names in files.items() for name in names}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    path.unlink()


def words(numbers: Tensor, bits: int, places: Iterable[int]) -> Tensor:
    """Each line of `numbers` in one int32, its numbers at `places` of `bits` bits."""
    values = (numbers << (bits * torch.tensor(list(places)))).sum(-1)
    return (values - (values >> 31 << 32)).to(torch.int32)


def along(numbers: Tensor, bits: int, axis: int, places: Iterable[int] | None = None) -> Tensor:
    """Whole numbers packed along `axis`, 32 // bits in a word."""
    packed = 32 // bits
    lines = numbers if axis == 1 else numbers.t()
    flat = words(lines.reshape(-1, packed), bits, places or range(packed)).view(len(lines), -1)
    return flat if axis == 1 else flat.t()


@dataclass(frozen=True)
class Whole:
    """Whole numbers of `bits` that stand for about `weight`, with scales and zero-points by group of inputs."""

    numbers: Tensor
    zeros: Tensor
    scales: Tensor
    index: Tensor

    def meant(self) -> Tensor:
        return (self.numbers - self.zeros[:, self.index]).float() * self.scales.float()[:, self.index]


def whole(
    weight: Tensor,
    generator: torch.Generator,
    bits: int,
    group: int = GROUP,
    *,
    symmetric: bool = False,
    shuffled: bool = False,
    least_zero: int = 0,
    dtype: torch.dtype = torch.float16,
) -> Whole:
    """Scales are as `dtype` holds them. `shuffled`: an input's group is any."""
    rows, inputs = weight.shape
    count, most = -(-inputs // group), 2**bits - 1
    index = torch.arange(inputs) // group
    index = index[torch.randperm(inputs, generator=generator)] if shuffled else index
    middle = torch.full((rows, count), 2 ** (bits - 1))
    shift = torch.randint(-1, 2, (rows, count), generator=generator)
    zeros = middle if symmetric else (middle + shift).clamp(least_zero, most)
    scales = (weight.abs().max() / 2 ** (bits - 1) * (1 + torch.rand(rows, count, generator=generator))).to(dtype)
    numbers = (weight / scales.float()[:, index] + zeros[:, index]).round().clamp(0, most).long()
    return Whole(numbers, zeros, scales, index)


def awq(group: int) -> Packer:
    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        found = whole(weight, generator, 4, group if group > 0 else weight.shape[1])
        tensors = {
            "qweight": along(found.numbers.t(), 4, 1, AWQ_PLACES),
            "qzeros": along(found.zeros.t(), 4, 1, AWQ_PLACES),
            "scales": found.scales.t(),
        }
        return tensors, found.meant()

    return pack


def gptq(bits: int, group: int, *, offset: int = 1, shuffled: bool = False, named: bool = True, **how: Any) -> Packer:
    """`offset`: what the format takes off a zero-point. `named`: with `g_idx`."""

    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        size = group if group > 0 else weight.shape[1]
        found = whole(weight, generator, bits, size, shuffled=shuffled, least_zero=offset, **how)
        tensors = {
            "qweight": along(found.numbers.t(), bits, 0),
            "qzeros": along(found.zeros.t() - offset, bits, 1),
            "scales": found.scales.t(),
        }
        return tensors | ({"g_idx": found.index.to(torch.int32)} if named else {}), found.meant()

    return pack


def packed(bits: int, group: int, *, symmetric: bool, shuffled: bool = False) -> Packer:
    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        size = group if group > 0 else weight.shape[1]
        found = whole(weight, generator, bits, size, symmetric=symmetric, shuffled=shuffled, dtype=torch.bfloat16)
        tensors = {
            "weight_packed": along(found.numbers, bits, 1),
            "weight_scale": found.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        tensors |= {} if symmetric else {"weight_zero_point": along(found.zeros, bits, 0)}
        tensors |= {"weight_g_idx": found.index.to(torch.int32)} if shuffled else {}
        return tensors, found.meant()

    return pack


def int8(*, symmetric: bool) -> Packer:
    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        found = whole(weight, generator, 8, weight.shape[1], symmetric=symmetric, dtype=torch.float32)
        tensors = {"weight": (found.numbers - 128).to(torch.int8), "weight_scale": found.scales}
        tensors |= {} if symmetric else {"weight_zero_point": (found.zeros - 128).to(torch.int8)}
        return tensors, found.meant()

    return pack


def fp8(block: tuple[int, int] | None, scale: str = "weight_scale", shape: tuple[int, ...] | None = None) -> Packer:
    """`block`: rows and inputs that share a scale (0: all); `shape` of the scale, if it is not the grid's."""

    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        rows, inputs = weight.shape
        high, wide = (side or size for side, size in zip(block or (0, 0), weight.shape, strict=True))
        scales = (1 + torch.rand(-(-rows // high), -(-inputs // wide), generator=generator)) / 64
        spread = scales.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :inputs]
        stored = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors = {"weight": stored, scale: scales if shape is None else scales.reshape(shape)}
        return tensors, stored.float() * spread

    return pack


def _compressed(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    groups, ignore = {"group_0": group}, ["lm_head", "re:.*gate$"]
    values = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**values, "config_groups": groups, "ignore": ignore}


def _int4(group: int, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True, **more}
    return _compressed("pack-quantized", weights)


def _eight(kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    form = "int-quantized" if kind == "int" else "float-quantized"
    return _compressed(form, {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **more})


def formats(group: int = GROUP) -> dict[str, Format]:
    """By name, with `group` inputs in a group."""
    return {**_old_formats(group), **_compressed_formats(group), **_fp8_formats()}


def _old_formats(group: int) -> dict[str, Format]:
    of_gptq = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True}
    of_awq = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    kept = {"lm_head": {"bits": 16, "data_type": "float"}}
    of_round = {"quant_method": "auto-round", "bits": 4, "group_size": group, "sym": True, "extra_config": kept}
    two = {**of_gptq, "bits": 2, "checkpoint_format": "gptq_v2"}
    return {
        "awq": Format({**of_awq, "modules_to_not_convert": ["lm_head"]}, awq(group)),
        "awq by row": Format({"quant_method": "awq", "w_bit": 4, "q_group_size": -1}, awq(-1)),
        "gptq": Format(of_gptq, gptq(4, group, symmetric=True)),
        "gptq reordered": Format({**of_gptq, "desc_act": True, "sym": False}, gptq(4, group, shuffled=True)),
        "gptq 8 bits by row": Format({**of_gptq, "bits": 8, "group_size": -1}, gptq(8, -1)),
        "gptq 2 bits, version 2": Format(two, gptq(2, group, offset=0, named=False)),
        "auto-round": Format({**of_round, "packing_format": "auto_round:auto_gptq"}, gptq(4, group, named=False)),
        "auto-round, as awq": Format({**of_round, "packing_format": "auto_round:auto_awq"}, awq(group)),
        "gptq with head": Format({**of_gptq, "lm_head": True}, gptq(4, group), plain=("gate",)),
    }


def _compressed_formats(group: int) -> dict[str, Format]:
    by_row = _int4(group, num_bits=8, strategy="channel", group_size=None)
    return {
        "packed": Format(_int4(group), packed(4, group, symmetric=True)),
        "packed asymmetric": Format(_int4(group, symmetric=False), packed(4, group, symmetric=False)),
        "packed reordered": Format(_int4(group, actorder="group"), packed(4, group, symmetric=True, shuffled=True)),
        "packed 8 bits by row": Format(by_row, packed(8, -1, symmetric=True), key="compression_config"),
        "int8": Format(_eight("int", "channel"), int8(symmetric=True)),
        "int8 asymmetric": Format(_eight("int", "channel", symmetric=False), int8(symmetric=False)),
        "fp8 by tensor": Format(_eight("float", "tensor"), fp8(None, shape=(1,))),
        "fp8 by row": Format(_eight("float", "channel"), fp8((1, 0))),
        "fp8 by block": Format(_eight("float", "block", block_structure=[24, 40]), fp8((24, 40))),
    }


def _fp8_formats() -> dict[str, Format]:
    values = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    by_row = {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    fbgemm = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    return {
        "fp8 by block, DeepSeek": Format({**values, "weight_block_size": [24, 40]}, fp8((24, 40), "weight_scale_inv")),
        "fp8 of AutoFP8": Format({**values, "activation_scheme": "static"}, fp8(None, shape=())),
        "fp8 of transformers": Format({**values, "weight_block_size": None}, fp8(None, "weight_scale_inv", ())),
        "fbgemm": Format(fbgemm, fp8((1, 0))),
        "modelopt": Format({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(None, shape=())),
        "modelopt by row": Format({"quant_method": "modelopt", "quantization": by_row}, fp8((1, 0), shape=(-1,))),
    }
