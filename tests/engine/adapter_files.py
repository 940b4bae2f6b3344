"""LoRA adapters with random weights, as PEFT writes them, for the models of tests."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def write_adapter(
    directory: Path,
    model: Path,
    targets: Sequence[str] = ALL,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 1,
    ranks: Mapping[str, int] | None = None,
    **more: Any,
) -> Path:
    """An adapter of the linear layers of `model` whose names end with one of `targets`. `ranks`: other ranks, by
    target; `more` are further keys of its configuration. Its effect on the logits is great.
    """
    directory.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, weight in sorted(safetensors.torch.load_file(model / "model.safetensors").items()):
        target = name.removesuffix(".weight").rpartition(".")[2]
        if target in targets and ".experts." not in name:
            own, stem = (ranks or {}).get(target, rank), f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(own, weight.shape[1], generator=random) * 0.1
            tensors[f"{stem}.lora_B.weight"] = torch.randn(weight.shape[0], own, generator=random) * 0.1
    safetensors.torch.save_file(tensors, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "bias": "none",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "target_modules": list(targets),
        "rank_pattern": dict(ranks or {}),
        "use_dora": False,
        "modules_to_save": None,
        "peft_version": "0.21.2",
        **more,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def merge(weights: Mapping[str, Tensor], adapter: Path) -> dict[str, Tensor]:
    """The model's weights by name with the adapter in them: W + scale B A, the scale by PEFT's rules."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    merged = dict(weights)
    for name, down in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            rank, patterns = down.shape[0], config.get("alpha_pattern") or {}
            alphas = [alpha for key, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", module)]
            alpha = (alphas or [config["lora_alpha"]])[0]
            scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
            change = tensors[name.replace("lora_A", "lora_B")].double() @ down.double() * scale
            weight = f"{module}.weight"
            merged[weight] = (merged[weight].double() + change).to(merged[weight].dtype)
    return merged
