"""Adapters on disk: which modules, ranks and scales a file means, its digest, and what is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from dunlin.model.config import ModelConfig, load_config
from dunlin.model.errors import ModelError
from dunlin.model.lora.adapter import examine_adapter, load_adapter
from dunlin.model.lora.config import MOST_RANK, is_adapter
from tests.engine.adapter_files import ALL, ATTENTION, write_adapter
from tests.engine.build import make_checkpoint

LAYERS = 3
PREFIX = "base_model.model.model.layers"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS)


@pytest.fixture(scope="module")
def config(model: Path) -> ModelConfig:
    return load_config(model)


def faults(directory: Path, config: ModelConfig) -> str:
    adapter, found = examine_adapter(directory, config)
    assert (adapter is None) == bool(found)
    return "\n".join(map(str, found))


def change(directory: Path, make: Callable[[dict[str, Tensor]], object]) -> None:
    path = directory / "adapter_model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    make(tensors)
    safetensors.torch.save_file(tensors, path)


def test_every_module_has_its_rank_and_scale(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    options: dict[str, Any] = {"ranks": {"q_proj": 3}, "alpha_pattern": {r"layers\.1\.self_attn\.v_proj": 6}}
    adapter = load_adapter(write_adapter(tmp_path, model, rank=4, alpha=8, **options), config)
    assert len(adapter.modules) == LAYERS * len(ALL)
    found = {name: (each.rank, each.scale) for name, each in adapter.modules.items()}
    assert found["model.layers.0.self_attn.q_proj"] == (3, 8 / 3)
    assert found["model.layers.0.self_attn.v_proj"] == (4, 2.0)
    assert found["model.layers.1.self_attn.v_proj"] == (4, 1.5)
    assert adapter.most_rank == 4
    tensors = safetensors.torch.load_file(adapter.file)
    assert adapter.parameters == sum(tensor.numel() for tensor in tensors.values())


def test_rslora_divides_by_the_root_of_the_rank(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    adapter = load_adapter(write_adapter(tmp_path, model, rank=9, alpha=6, use_rslora=True), config)
    assert {each.scale for each in adapter.modules.values()} == {2.0}


@pytest.mark.parametrize(
    ("more", "written", "count"),
    [
        ({"target_modules": "all-linear"}, ALL, LAYERS * 7),
        ({"target_modules": r".*\.[qv]_proj"}, ("q_proj", "v_proj"), LAYERS * 2),
        ({"target_modules": ["self_attn.q_proj"]}, ("q_proj",), LAYERS),
        (
            {"exclude_modules": ["k_proj", "o_proj"], "target_modules": list(ATTENTION)},
            ("q_proj", "v_proj"),
            LAYERS * 2,
        ),
    ],
)
def test_modules_are_named_as_peft_does(
    more: dict[str, Any], written: tuple[str, ...], count: int, tmp_path: Path, model: Path, config: ModelConfig
) -> None:
    assert len(load_adapter(write_adapter(tmp_path, model, written, **more), config).modules) == count


def test_layers_may_be_named(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    write_adapter(tmp_path, model, ("q_proj",), layers_to_transform=[0, 2])
    change(tmp_path, lambda each: [each.pop(name) for name in list(each) if f"{PREFIX}.1." in name])
    assert [*load_adapter(tmp_path, config).modules] == [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 2)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["embed_tokens"]),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "loftq"),
        ("layer_replication", [[0, 2], [1, 3]]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("trainable_token_indices", [1]),
        ("alora_invocation_tokens", [5, 6]),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("a_key_of_next_year", 1),
        ("peft_type", "IA3"),
        ("layers_pattern", "blocks"),
        ("r", 0),
        ("r", "8"),
        ("lora_alpha", None),
        ("target_modules", None),
        ("target_modules", "*["),
        ("rank_pattern", {"q_proj": 2.5}),
        ("alpha_pattern", ["q_proj"]),
        ("alpha_pattern", {"q_proj": float("inf")}),
        ("layers_to_transform", "0"),
    ],
)
def test_what_is_not_read_is_refused_by_its_key(
    key: str, value: Any, tmp_path: Path, model: Path, config: ModelConfig
) -> None:
    write_adapter(tmp_path, model, **{key: value})
    assert f"`{key}`" in faults(tmp_path, config)


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_starts_that_leave_the_model_alone_are_served(
    start: Any, tmp_path: Path, model: Path, config: ModelConfig
) -> None:
    assert faults(write_adapter(tmp_path, model, init_lora_weights=start), config) == ""


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.embed_tokens.weight",
        f"{PREFIX}.0.self_attn.q_proj.lora_magnitude_vector",
        f"{PREFIX}.0.self_attn.q_proj.lora_B.bias",
        f"{PREFIX}.0.mlp.experts.0.w1.lora_A.weight",
        f"{PREFIX}.7.self_attn.q_proj.lora_A.weight",
        f"{PREFIX}.0.input_layernorm.weight",
    ],
)
def test_a_tensor_that_is_not_read_is_refused_by_its_name(
    name: str, tmp_path: Path, model: Path, config: ModelConfig
) -> None:
    write_adapter(tmp_path, model)
    change(tmp_path, lambda tensors: tensors.update({name: torch.zeros(4, 4)}))
    assert f"`{name}`" in faults(tmp_path, config)


def test_adapted_experts_are_refused(tmp_path: Path) -> None:
    moe = make_checkpoint(tmp_path, "mixtral", options={"num_local_experts": 4})
    write_adapter(tmp_path / "a", moe, ATTENTION)
    assert faults(tmp_path / "a", load_config(moe)) == ""
    name = f"{PREFIX}.0.block_sparse_moe.experts.1.w1.lora_A.weight"
    change(tmp_path / "a", lambda tensors: tensors.update({name: torch.zeros(4, 96)}))
    assert f"`{name}`" in faults(tmp_path / "a", load_config(moe))


def test_a_missing_or_misshapen_half_is_named(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    name = f"{PREFIX}.1.mlp.up_proj.lora_B.weight"
    write_adapter(tmp_path, model)
    change(tmp_path, lambda tensors: tensors.update({name: torch.zeros(5, 4)}))
    assert f"tensor `{name}` has shape (5, 4)" in faults(tmp_path, config)
    change(tmp_path, lambda tensors: tensors.pop(name))
    assert f"tensor `{name}` is missing" in faults(tmp_path, config)
    write_adapter(tmp_path, model, rank=MOST_RANK + 1)
    assert f"rank {MOST_RANK + 1}" in faults(tmp_path, config)


def test_a_target_that_is_no_module_here_is_refused(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    assert "`target_modules`" in faults(write_adapter(tmp_path, model, ("c_attn",)), config)


def test_files_that_are_no_adapter_are_refused(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    assert "no such file" in faults(model, config)
    assert not is_adapter(model)
    write_adapter(tmp_path, model)
    assert is_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    assert "pickle" in faults(tmp_path, config)
    with pytest.raises(ModelError, match="pickle"):
        load_adapter(tmp_path, config)


def test_the_digest_is_of_both_files(tmp_path: Path, model: Path, config: ModelConfig) -> None:
    one = load_adapter(write_adapter(tmp_path / "a", model, seed=1), config).digest
    assert load_adapter(write_adapter(tmp_path / "a", model, seed=1), config).digest == one
    assert len(one) == 32
    others = {
        load_adapter(write_adapter(tmp_path / "b", model, seed=2), config).digest,
        load_adapter(write_adapter(tmp_path / "c", model, seed=1, alpha=9.0), config).digest,
    }
    assert len(others | {one}) == 3
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["r"] == 4
