"""A checkpoint of a large model's shape with random weights, made on the device and written in shards.

Its tokenizer is the built-in one, with a word for each further id of the vocabulary: every token has a text.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.gpu.plan import SpeedShape
from benchmarks.gpu.random_model import config_values
from dunlin.engine.decoder.loading.random_checkpoint import random_tensors, write_tokenizer
from dunlin.model.config import load_config

SHARD_BYTES = 2 << 30


def write_large_checkpoint(directory: Path, shape: SpeedShape, device: torch.device) -> None:
    """In bf16, as Hugging Face lays it out."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config_values(shape)), encoding="utf-8")
    write_tokenizer(directory)
    _widen_vocabulary(directory / "tokenizer.json", shape.vocab)
    tensors = random_tensors(load_config(directory), torch.bfloat16, seed=1, device=device)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(_shards(tensors)):
        name = f"model-{number:05d}.safetensors"
        save_file({each: tensor.cpu() for each, tensor in shard.items()}, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _shards(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors:
        shard[name] = tensor
        if sum(each.nbytes for each in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def _widen_vocabulary(tokenizer: Path, size: int) -> None:
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    for token in range(len(vocabulary), size):
        vocabulary[f"{token:x}Ġ"] = token
    tokenizer.write_text(json.dumps(content), encoding="utf-8")
