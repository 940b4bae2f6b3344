"""A model of a shape with random weights, made on the device: no checkpoint is written, nothing is read."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.plan import SpeedShape
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.loading.loader import LoadedModel, loaded_weights, model_memory
from dunlin.engine.decoder.loading.weights import WeightRoom, digest_of
from dunlin.engine.decoder.memory.layer_arena import LayerArena, open_arena
from dunlin.engine.device.base import EngineDevice
from dunlin.model.config import ModelConfig, load_config


def config_values(shape: SpeedShape) -> dict[str, object]:
    """config.json of a Llama of that shape, as transformers reads it too."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


def random_tokens(count: int, vocabulary: int, random: torch.Generator) -> list[int]:
    """Of a text."""
    found: list[int] = torch.randint(0, vocabulary, (count,), generator=random).tolist()
    return found


def random_model(shape: SpeedShape, device: EngineDevice, slots: int) -> LoadedModel:
    """In bf16, with KV for `slots` tokens that holds random numbers: zeros would be computed faster."""
    config = _config(shape)
    memory = model_memory(config, torch.bfloat16, slots * shape.kv_bytes, device.memory.granule_bytes)
    arena = open_arena(os.memfd_create("gpu-benchmark"), memory, range(config.layers), device.memory)
    with torch.inference_mode():
        _fill(arena.outer_room())
        for layer in range(config.layers):
            room = arena.layer_room(layer)
            _fill(room)
            arena.commit(arena.record.with_layer(layer, loaded=True, digest=digest_of(room)))
            arena.kv(layer)[: arena.slots_of(layer)].normal_()
        arena.commit(replace(arena.record, outer_loaded=True, outer_digest=digest_of(arena.outer_room())))
    return _loaded(arena, config, device)


def _config(shape: SpeedShape) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_values(shape)), encoding="utf-8")
        return load_config(Path(folder))


def _fill(room: WeightRoom) -> None:
    for view in room.views.values():
        if view.ndim == 1:
            view.fill_(1.0)
        else:
            view.normal_(0.0, float(view.shape[-1]) ** -0.5)


def _loaded(arena: LayerArena, config: ModelConfig, device: EngineDevice) -> LoadedModel:
    weights = loaded_weights(arena)
    kv = [arena.kv(layer) for layer in range(config.layers)]
    decoder = Decoder(config, weights, kv, device.choose_numerics()[0])
    held, slots, quantum = arena.record.held, arena.slots, arena.plan.quantum
    return LoadedModel(decoder, arena, config, weights, "random", held, slots, quantum, ())
