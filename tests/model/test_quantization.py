"""quantization_config and the tensors of quantised modules: what is read, and what is refused by name."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from benchmarks.fuzzing.packed_weights import formats
from dunlin.model.checkpoint_headers import TensorEntry
from dunlin.model.checkpoint_tensors import tensor_faults, wanted_tensors
from dunlin.model.config import ModelConfig, parse_config
from dunlin.model.errors import ModelError
from dunlin.model.quantization.methods import METHODS, REFUSED
from dunlin.model.quantization.scaled import FP8, ScaledScheme
from tests.model.test_config import LLAMA, PATH

FORMATS = formats()
UP = "model.layers.0.mlp.up_proj"
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}


def parse(method: str, **values: Any) -> ModelConfig:
    sizes = {"num_hidden_layers": 1, "vocab_size": 96}
    return parse_config({**LLAMA, **sizes, "quantization_config": {"quant_method": method, **values}}, PATH)


def compressed(form: str, weights: dict[str, Any], targets: tuple[str, ...] = ("Linear",), **more: Any) -> ModelConfig:
    groups = {"group_0": {"targets": list(targets), "weights": weights}}
    return parse("compressed-tensors", **{"format": form, "config_groups": groups, **more})


def entries_of(config: ModelConfig, path: Path = Path("f")) -> dict[str, TensorEntry]:
    """Every product of the layers quantised, the rest plain."""
    found = {}
    for name, shape in wanted_tensors(config):
        module = name.removesuffix(".weight")
        scheme = config.quantization.scheme_of(module) if config.quantization and "layers" in name else None
        if scheme is None or len(shape) != 2:
            found[name] = TensorEntry(path, "F16", shape)
            continue
        for each in scheme.tensors(*shape):
            found[f"{module}.{each.suffix}"] = TensorEntry(path, each.dtypes[0], each.shapes[0])
    return found


def faults(entries: dict[str, TensorEntry], config: ModelConfig) -> list[str]:
    return [str(fault) for fault in tensor_faults(entries, config, Path("model"))]


def test_every_method_that_transformers_knows_is_read_or_refused_by_name() -> None:
    transformers_config = pytest.importorskip("transformers.utils.quantization_config")
    known = {method.value for method in transformers_config.QuantizationMethod}
    assert len(known) > 20
    assert known <= {*METHODS, *REFUSED}, "say in methods.py what becomes of it"
    assert not set(METHODS) & set(REFUSED)


@pytest.mark.parametrize("method", [*REFUSED, "sparseml", "", None, ["awq"]])
def test_what_is_not_read_is_refused_with_a_remedy(method: Any) -> None:
    with pytest.raises(ModelError) as caught:
        parse(method)
    assert f"weights quantised by {method} (`quantization_config`) are not supported" in caught.value.what
    assert "use the unquantised checkpoint, or one quantised by awq, gptq" in caught.value.remedy


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "`bits` 8": ("awq", {"bits": 8}),
    "`version` 'gemv'": ("awq", {"version": "GEMV"}),
    "`zero_point` False": ("awq", {"zero_point": False}),
    "`backend` 'llm-awq'": ("awq", {"backend": "llm-awq"}),
    "`group_size` of quantised weights must be": ("awq", {"group_size": 0}),
    "`bits` 3": ("gptq", {"bits": 3}),
    "`bits` [4]": ("gptq", {"bits": [4]}),
    "`bits` True": ("gptq", {"bits": True}),
    "`bits` 4.0": ("gptq", {"bits": 4.0}),
    "`checkpoint_format` 'marlin'": ("gptq", {"checkpoint_format": "marlin"}),
    "`is_marlin_format` True": ("gptq", {"is_marlin_format": True}),
    "`pack_dtype` 'int64'": ("gptq", {"pack_dtype": "int64"}),
    "`desc_act` must be true or false": ("gptq", {"desc_act": "yes"}),
    "`dynamic` of quantised weights": ("gptq", {"dynamic": {"-:a": {}, "+:b": {"bits": 8}}}),
    "`packing_format` 'auto_round:gptqmodel'": ("auto-round", {"packing_format": "auto_round:gptqmodel"}),
    "`packing_format` None": ("auto-round", {}),
    "`bits` 8 of": ("auto-round", {"packing_format": "auto_round:auto_awq", "bits": 8}),
    "`data_type` 'mx_fp'": ("auto-round", {"packing_format": "auto_round:auto_gptq", "data_type": "mx_fp"}),
    "`extra_config` of quantised weights": (
        "auto-round",
        {"packing_format": "auto_round:auto_gptq", "extra_config": {"a": {"bits": 16}, "b": {"bits": 8}}},
    ),
    "`rotation_config` of": ("auto-round", {"packing_format": "auto_round:auto_gptq", "rotation_config": {"a": 1}}),
    "`quant_algo` 'NVFP4'": ("modelopt", {"quant_algo": "nvfp4"}),
    "`quant_algo` None": ("modelopt", {}),
    "`fmt` 'e5m2'": ("fp8", {"fmt": "e5m2"}),
    "`weight_block_size` of quantised weights must be two": ("fp8", {"weight_block_size": [128]}),
    "`config_groups` of compressed-tensors must be": ("compressed-tensors", {"config_groups": {"W8A8": ["Linear"]}}),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_layouts_that_are_not_read_are_named(what: str) -> None:
    method, values = OPTIONS[what]
    with pytest.raises(ModelError) as caught:
        parse(method, **values)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("what", "form", "weights", "more"),
    [
        ("`format` 'nvfp4-pack-quantized'", "nvfp4-pack-quantized", INT4, {}),
        ("`format` 'dense'", "dense", INT8, {}),
        ("`type` 'float'", "pack-quantized", {**INT4, "type": "float"}, {}),
        ("`num_bits` 3", "pack-quantized", {**INT4, "num_bits": 3}, {}),
        ("`num_bits` 4", "int-quantized", {**INT8, "num_bits": 4}, {}),
        ("`strategy` 'tensor_group'", "pack-quantized", {**INT4, "strategy": "tensor_group"}, {}),
        ("`strategy` 'token'", "float-quantized", {**FLOAT8, "strategy": "token"}, {}),
        *(
            (f"`actorder` {order!r}", "int-quantized", {**INT8, "actorder": order}, {})
            for order in ("group", "dynamic", True, "other")
        ),
        *(
            (f"`actorder` {order!r}", "pack-quantized", {**INT4, "actorder": order}, {})
            for order in ("GROUPED", "", 1, ["group"])
        ),
        ("`dynamic` True", "int-quantized", {**INT8, "dynamic": True}, {}),
        ("`sparsity_config.format` 'sparse-24", "int-quantized", INT8, {"sparsity_config": {"format": "sparse-24-bm"}}),
        ("`transform_config`", "int-quantized", INT8, {"transform_config": {"config_groups": {"R1": {}}}}),
        ("broken pattern 're:('", "int-quantized", INT8, {"ignore": ["re:("]}),
        ("`ignore` of compressed-tensors must be a list", "int-quantized", INT8, {"ignore": "lm_head"}),
    ],
)
def test_compressed_tensors_that_are_not_read_are_named(
    what: str, form: str, weights: dict[str, Any], more: dict[str, Any]
) -> None:
    with pytest.raises(ModelError) as caught:
        compressed(form, weights, **more)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("order", "is_ordered"),
    [
        ("group", True),
        ("dynamic", True),
        (True, True),
        ("weight", False),
        ("static", False),
        (False, False),
        (None, False),
    ],
)
def test_an_activation_order_is_read_by_all_its_names(order: Any, is_ordered: bool) -> None:
    """`dynamic` is another name of `group`, whose `weight_g_idx` must be there; of the others nothing is left."""
    for form, weights in (("pack-quantized", INT4), ("int-quantized", INT8)):
        if form == "int-quantized" and is_ordered:
            continue  # refused by name, above
        config = compressed(form, {**weights, "actorder": order})
        assert config.quantization is not None
        scheme = config.quantization.scheme_of(UP)
        assert scheme is not None
        names = [each.suffix for each in scheme.tensors(64, 64)]
        assert any("g_idx" in name for name in names) == is_ordered


def test_a_modules_own_name_goes_before_a_pattern_and_that_before_its_class() -> None:
    def group(target: str, bits: int) -> dict[str, Any]:
        weights = {**INT4, "num_bits": bits, "group_size": 8 * bits}
        return {"targets": [target], "weights": weights, "format": "pack-quantized"}

    plain = {"targets": [UP], "weights": FLOAT8, "format": "float-quantized"}
    groups = {"a": group("Linear", 4), "b": group("re:.*up_proj$", 8), "c": plain}
    config = parse(
        "compressed-tensors", format="mixed-precision", config_groups=groups, ignore=["re:.*down", "lm_head"]
    )
    assert config.quantization is not None
    find = config.quantization.scheme_of
    assert find(UP) == ScaledScheme(FP8, 0, 0)
    assert str(find("model.layers.1.mlp.up_proj")) == "8-bit integers in groups of 64"
    assert str(find("model.layers.1.self_attn.q_proj")) == "4-bit integers in groups of 32"
    assert find("lm_head") is None
    assert find("model.layers.0.mlp.down_proj") is None
    assert str(config.quantization).startswith("compressed-tensors: fp8, one scale for a tensor; 8-bit")


@pytest.mark.parametrize(("size", "words"), [(None, "one scale for a tensor"), (-1, "by row"), (32, "in groups of 32")])
def test_a_strategy_that_is_not_named_follows_from_the_group(size: int | None, words: str) -> None:
    config = compressed("float-quantized", {"num_bits": 8, "type": "float", "group_size": size})
    assert str(config.quantization).endswith(words)


def test_a_block_may_be_one_row() -> None:
    config = parse("fp8", weight_block_size=[1, 128])
    assert str(config.quantization) == "fp8: fp8 in groups of 128"


def test_how_weights_are_stored_is_no_part_of_what_is_computed() -> None:
    assert repr(parse("awq")) == repr(parse_config({**LLAMA, "num_hidden_layers": 1, "vocab_size": 96}, PATH))


def test_a_whole_checkpoint_has_no_fault_and_scales_of_activations_are_not_read() -> None:
    for config in (parse("awq", group_size=32), parse("gptq", group_size=32), compressed("pack-quantized", INT4)):
        entries = entries_of(config)
        for name in (f"{UP}.input_scale", "model.layers.0.self_attn.k_scale"):
            entries[name] = TensorEntry(Path("f"), "F32", (1,))
        assert faults(entries, config) == []


def test_the_scale_of_a_tensor_has_two_names_of_which_one_is_there() -> None:
    config = parse("fp8")
    entries = entries_of(config)
    entries[f"{UP}.weight_scale_inv"] = entries.pop(f"{UP}.weight_scale")
    assert faults(entries, config) == []
    entries[f"{UP}.weight_scale"] = entries[f"{UP}.weight_scale_inv"]
    assert faults(entries, config)[0].startswith(f"f: tensor `{UP}.weight_scale_inv` belongs to quantised weights")


def entry(dtype: str, *shape: int) -> TensorEntry:
    return TensorEntry(Path("f"), dtype, shape)


@pytest.mark.parametrize(
    ("name", "given", "what"),
    [
        (f"{UP}.qzeros", None, f"tensor `{UP}.qzeros` is missing (4-bit integers in groups of 32)"),
        (f"{UP}.qweight", entry("I64", 64, 16), "has dtype I64, not I32"),
        (f"{UP}.qweight", entry("I32", 64, 8), "has shape (64, 8), config.json implies (64, 16)"),
        (f"{UP}.scales", entry("F16", 4, 128), "has shape (4, 128), config.json implies (2, 128)"),
        (f"{UP}.weight", entry("F16", 128, 64), f"tensor `{UP}.qweight` belongs to quantised weights"),
        (f"{UP}.pre_quant_scale", entry("F16", 64), f"tensor `{UP}.pre_quant_scale` belongs to quantised weights"),
        ("model.layers.0.mlp.act.scales", entry("F16", 64), "act.scales` belongs to quantised weights"),
        ("model.embed_tokens.qweight", entry("I32", 96, 8), "embed_tokens.qweight` belongs to quantised weights"),
        ("model.layers.1.mlp.up_proj.qweight", entry("I32", 64, 16), "layers.1.mlp.up_proj.qweight` belongs"),
    ],
)
def test_tensors_that_do_not_fit_are_named(name: str, given: TensorEntry | None, what: str) -> None:
    config = parse("awq", group_size=32)
    entries = {**entries_of(config), name: given}
    found = faults({each: entry for each, entry in entries.items() if entry is not None}, config)
    assert what in next(iter(found), "no fault")


def test_weights_of_eight_bits_need_their_scale_and_what_is_ignored_none() -> None:
    config = compressed("int-quantized", INT8, ignore=[UP])
    entries = entries_of(config)
    assert faults(entries, config) == [], "ignored and plain"
    entries[f"{UP}.weight"] = entry("I8", 128, 64)
    assert "has dtype I8; dunlin reads F32" in faults(entries, config)[0], "ignored and not plain"
    del entries["model.layers.0.mlp.down_proj.weight_scale"]
    assert "down_proj.weight_scale` is missing (8-bit integers by row)" in faults(entries, config)[1]


def test_sizes_that_a_format_does_not_hold_are_named() -> None:
    odd = parse("gptq", bits=2, group_size=32)
    entries = entries_of(odd)
    config = parse_config({**LLAMA, "num_hidden_layers": 1, "vocab_size": 96, "intermediate_size": 120}, PATH)
    assert any("120 rows × 64 inputs are no multiples of 16" in each for each in faults(entries, _like(config, odd)))
    awq = parse("awq", group_size=-1)
    config = parse_config({**LLAMA, "num_hidden_layers": 1, "vocab_size": 96, "intermediate_size": 124}, PATH)
    assert any("124 rows are no multiple of 8" in each for each in faults(entries_of(awq), _like(config, awq)))
    awq = parse("awq", group_size=48)
    assert "64 inputs are no multiple of the group's 48" in faults(entries_of(awq), awq)[0]


def _like(config: ModelConfig, quantised: ModelConfig) -> ModelConfig:
    return replace(config, quantization=quantised.quantization)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_of_zeros_beside_quantised_weights_changes_nothing(tmp_path: Path, dtype: torch.dtype) -> None:
    config, name = parse("gptq", group_size=32), f"{UP}.bias"
    for value, count in ((0.0, 0), (0.5, 1)):
        bias = torch.zeros(128, dtype=dtype)
        bias[77] = value
        safetensors.torch.save_file({"a": torch.ones(3), name: bias}, tmp_path / "f")
        entries = {**entries_of(config, tmp_path / "f"), name: TensorEntry(tmp_path / "f", "F16", (128,))}
        assert len(faults(entries, config)) == count


def test_quantised_weights_without_a_word_in_config_json_are_named() -> None:
    entries = entries_of(parse("awq", group_size=32))
    plain = parse_config({**LLAMA, "num_hidden_layers": 1, "vocab_size": 96}, PATH)
    found = faults(entries, plain)
    assert any(
        f"`{UP}.qweight` belongs to quantised weights, and config.json does not say how" in each for each in found
    )


ODD: tuple[Any, ...] = (None, True, 0, -1, 4.0, 1 << 40, "", "gemm", [], [0], [[1]], {}, {"weights": 3}, {"a": {}})


def variants(value: Any) -> Iterator[Any]:
    """`value` with one of its parts replaced by what no writer puts there, or taken out."""
    yield from ODD
    parts: Iterable[Any] = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for part in parts:
        for odd in variants(value[part]):
            changed = copy.copy(value)
            changed[part] = odd
            yield changed
        if isinstance(value, dict):
            yield {key: each for key, each in value.items() if key != part}


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_config_json_holds_is_read_or_refused(name: str) -> None:
    sizes = {"num_hidden_layers": 1, "vocab_size": 96}
    for values in variants(FORMATS[name].config):
        try:
            config = parse_config({**LLAMA, **sizes, "quantization_config": values}, PATH)
        except ModelError:
            continue
        faults({}, config)
