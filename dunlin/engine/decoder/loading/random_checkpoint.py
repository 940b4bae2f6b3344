"""Random-weight checkpoints in Hugging Face's layout: for tests, demonstrations and measurements.

Needs no transformers; transformers loads what it writes. Knows no running engine.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dunlin.engine.decoder.loading.weights import TORCH_DTYPES
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.errors import ModelError
from dunlin.model.families import FAMILIES
from dunlin.model.weight_layout import WeightBlock, layer_blocks, outer_blocks, part_shapes

TOKENIZER = Path(__file__).parents[3] / "text" / "data"

# `norm`: the standard deviation of the logits; at 3 sampling has variety and a few tokens lead.
GAINS = {"norm": 3.0, "out": 2.0, "down": 2.0, "expert_down": 2.0, "router": 2.0}


@dataclass(frozen=True, slots=True)
class CheckpointShape:
    """What a random checkpoint looks like; sizes in elements, positions in tokens. `options` go into its config.json,
    over what stands there.
    """

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    intermediate: int = 704
    vocab: int = 4096
    max_positions: int = 16384
    tied: bool = False
    dtype: str = "float32"
    rope_theta: float = 10_000.0
    options: Mapping[str, Any] = field(default_factory=dict)


def write_random_checkpoint(
    directory: Path, family: str = "llama", shape: CheckpointShape | None = None, seed: int = 0
) -> ModelConfig:
    """Write a checkpoint with random weights, the built-in tokenizer and its chat template; the same seed gives the
    same bytes.

    :raises ModelError: an unknown family, a shape that no decoder has, or a directory that already holds a checkpoint.
    """
    shape = shape or CheckpointShape()
    if family not in FAMILIES:
        raise ModelError(directory, f"family {family!r} is unknown", f"choose one of {', '.join(FAMILIES)}")
    if shape.dtype not in TORCH_DTYPES:
        raise ModelError(directory, f"dtype {shape.dtype!r} is unknown", f"choose one of {', '.join(TORCH_DTYPES)}")
    if (directory / "config.json").exists():
        raise ModelError(directory, "already holds a checkpoint", "name another directory or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(family, shape))
    write_tokenizer(directory)
    config = load_config(directory)
    tensors = dict(random_tensors(config, TORCH_DTYPES[shape.dtype], seed))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return config


def _config(family: str, shape: CheckpointShape) -> dict[str, Any]:
    row = FAMILIES[family]
    values = {
        "architectures": [row.architecture],
        "model_type": family,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "sliding_window": None,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": shape.dtype,
    }
    if row.experts_keys:
        values |= {row.experts_keys[0]: 4, "num_experts_per_tok": 2, row.expert_width_key: shape.intermediate}
    if row.activation_key != "hidden_act":
        del values["hidden_act"]  # of another meaning there; the default is the family's
    if row.score_scale_key:
        values |= {row.score_scale_key: shape.head_dim, "sliding_window": min(512, shape.max_positions)}
    return {**values, **shape.options}


def write_tokenizer(directory: Path) -> None:
    """The built-in tokenizer with its chat template."""
    shutil.copyfile(TOKENIZER / "tokenizer.json", directory / "tokenizer.json")
    shutil.copyfile(TOKENIZER / "tokenizer_config.json", directory / "tokenizer_config.json")
    _write_json(directory / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def random_tensors(
    config: ModelConfig, dtype: torch.dtype, seed: int, device: torch.device | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of a checkpoint, drawn on `device`: another kind of device draws other numbers."""
    generator = torch.Generator(device or "cpu").manual_seed(seed)
    for block in outer_blocks(config):
        yield from _random(block, dtype, generator, config.norm_offset)
    for layer in range(config.layers):
        for block in layer_blocks(config, layer):
            yield from _random(block, dtype, generator, config.norm_offset)


def _random(
    block: WeightBlock, dtype: torch.dtype, generator: torch.Generator, norm_offset: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Normal entries that keep the scale of what they multiply, times the block's gain.

    Layers write much more to the residual than the embedding does, so a text depends on more than its last token, with
    tied embeddings too; and the last norm spreads the logits.
    """
    for name, shape in part_shapes(block):
        noise = torch.randn(shape, generator=generator, device=generator.device)
        if block.name.endswith("norm"):
            yield name, ((1 + 0.1 * noise) * GAINS.get(block.name, 1.0) - norm_offset).to(dtype)
        elif block.name.endswith("bias"):
            yield name, (0.1 * noise).to(dtype)
        else:
            yield name, (noise * GAINS.get(block.name, 1.0) * shape[-1] ** -0.5).to(dtype)


def main(arguments: Sequence[str]) -> int:
    """Make the checkpoint in the directory named: whole, or not at all."""
    directory = Path(arguments[0])
    with tempfile.TemporaryDirectory(dir=directory.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / directory.name
        write_random_checkpoint(made)
        os.rename(made, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
