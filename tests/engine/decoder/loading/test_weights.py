"""Checkpoints on disk: whole ones are read into the arena, broken ones are refused with their fault."""

import json
import os
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from dunlin.engine.decoder.loading import loader
from dunlin.engine.decoder.loading.loader import WeightLoader, model_memory
from dunlin.engine.decoder.loading.weights import (
    Checkpoint,
    WeightRoom,
    Weights,
    checkpoint_digest,
    digest_of,
    fill_pieces,
    root_digest,
)
from dunlin.engine.decoder.memory.layer_arena import LayerArena, open_arena
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.model.checkpoint_tensors import tensor_faults
from dunlin.model.config import load_config
from dunlin.model.errors import ModelError
from dunlin.model.weight_layout import layer_blocks, outer_blocks
from tests.engine.build import make_checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path, "qwen2", layers=2)


def open_weights(directory: Path, dtype: torch.dtype, fd: int) -> tuple[LayerArena, Weights]:
    config = load_config(directory)
    memory = model_memory(config, dtype, config.layers * GRANULE_BYTES)
    arena = open_arena(fd, memory, range(config.layers))
    with closing(Checkpoint(directory)) as checkpoint:
        for fault in tensor_faults(checkpoint.entries, config, directory):
            raise fault
        return arena, WeightLoader(arena, checkpoint, memory).load(lambda: None)


def read(directory: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return open_weights(directory, dtype, os.memfd_create("weights"))[1]


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    """Copies: the file may be written again under them."""
    return safetensors.torch.load((directory / "model.safetensors").read_bytes())


def test_every_tensor_lands_in_its_block(directory: Path) -> None:
    tensors, loaded = tensors_of(directory), read(directory)
    assert torch.equal(loaded.outer["embed"], tensors["model.embed_tokens.weight"])
    prefix = "model.layers.1.self_attn"
    qkv = torch.cat([tensors[f"{prefix}.{which}_proj.weight"] for which in "qkv"])
    bias = torch.cat([tensors[f"{prefix}.{which}_proj.bias"] for which in "qkv"])
    assert torch.equal(loaded.layers[1]["qkv"], qkv)
    assert torch.equal(loaded.layers[1]["qkv_bias"], bias)
    assert all(block.data_ptr() % 64 == 0 for layer in loaded.layers.values() for block in layer.values())


def test_another_dtype_is_a_conversion(directory: Path) -> None:
    loaded = read(directory, torch.bfloat16)
    assert torch.equal(loaded.outer["head"], tensors_of(directory)["lm_head.weight"].bfloat16())


def test_only_what_is_not_there_or_damaged_is_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.memfd_create("weights")
    first = open_weights(directory, torch.float32, fd)[1]
    wanted = first.layers[1]["qkv"].clone()
    filled: list[str] = []

    def noticed(checkpoint: Checkpoint, room: WeightRoom) -> Any:
        filled.append(room.blocks[0].parts[0].name)
        return fill_pieces(checkpoint, room)

    monkeypatch.setattr(loader, "fill_pieces", noticed)
    assert open_weights(directory, torch.float32, fd)[1].digest == first.digest
    assert filled == [], "a restarted engine reads no checkpoint"
    first.layers[1]["qkv"][0, 0] += 1.0
    second = open_weights(directory, torch.float32, fd)[1]
    assert filled == ["model.layers.1.input_layernorm.weight"]
    assert second.digest == first.digest
    assert torch.equal(second.layers[1]["qkv"], wanted)


def test_a_checkpoint_that_was_written_again_is_read_again(directory: Path) -> None:
    rewrite(directory)  # from here on every file is as long as the others
    fd = os.memfd_create("weights")
    first = open_weights(directory, torch.float32, fd)[1].digest
    changed = tensors_of(directory)["model.layers.0.mlp.up_proj.weight"] * 2
    rewrite(directory, model_layers_0_mlp_up_proj_weight=changed)
    second = open_weights(directory, torch.float32, fd)[1]
    assert second.digest != first
    assert torch.equal(second.layers[0]["gate_up"][160:], changed)


def test_a_layers_digest_is_that_of_the_checkpoint_and_names_its_place(directory: Path) -> None:
    config = load_config(directory)
    for dtype in (torch.float32, torch.bfloat16):
        arena, loaded = open_weights(directory, dtype, os.memfd_create("weights"))
        with closing(Checkpoint(directory)) as checkpoint:
            layers = [checkpoint_digest(checkpoint, layer_blocks(config, layer), dtype) for layer in range(2)]
            outer = checkpoint_digest(checkpoint, outer_blocks(config), dtype)
        assert [state.digest for state in arena.record.layers] == layers
        assert digest_of(arena.layer_room(1)) == layers[1]
        assert loaded.digest == root_digest(outer, layers) != root_digest(outer, layers[::-1])
    room = arena.layer_room(1)
    other = arena.layer_room(0)
    other.content.copy_(room.content)
    assert digest_of(other) != digest_of(room), "equal bytes elsewhere are another layer"


def shard(directory: Path) -> None:
    """The same tensors in two files and an index."""
    tensors = tensors_of(directory)
    names = sorted(tensors)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in files.items():
        safetensors.torch.save_file({name: tensors[name] for name in held}, directory / file)
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "model.safetensors").unlink()


def test_a_tensor_that_two_shards_hold_with_other_numbers_is_refused(directory: Path) -> None:
    """The last file's won, whatever the index said."""
    shard(directory)
    first, last = directory / "model-1.safetensors", directory / "model-2.safetensors"
    held, others = safetensors.torch.load_file(first), safetensors.torch.load_file(last)
    name = sorted(held)[0]
    safetensors.torch.save_file({**others, name: held[name]}, last)
    read(directory)
    safetensors.torch.save_file({**others, name: held[name] + 1}, last)
    assert f"model-2.safetensors: tensor `{name}` is in model-1.safetensors too, with other numbers" in complaint(
        directory
    )


def test_shards_are_the_same_weights(directory: Path) -> None:
    whole = read(directory)
    shard(directory)
    sharded = read(directory)
    assert sharded.digest == whole.digest
    assert all(torch.equal(sharded.layers[0][name], block) for name, block in whole.layers[0].items())


def test_the_digest_names_the_weights(directory: Path, tmp_path: Path) -> None:
    digest = read(directory).digest
    assert read(directory).digest == digest
    assert read(directory, torch.bfloat16).digest != digest
    tensors = tensors_of(directory)
    tensors["model.norm.weight"][3] += 1e-6
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    assert read(directory).digest != digest


def test_tensors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "none": torch.empty(0, 4)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.tensor(name), tensor)
    assert checkpoint.tensor("a").data_ptr() == checkpoint.tensor("a").data_ptr(), "no copy is made"
    kept = checkpoint.tensor("a")
    checkpoint.close()
    assert torch.equal(kept, tensors["a"]), "a view keeps its file mapped"


def rewrite(directory: Path, **changed: Any) -> None:
    tensors = {name: changed.get(name.replace(".", "_"), tensor) for name, tensor in tensors_of(directory).items()}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(kept, directory / "model.safetensors")


def complaint(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read(directory)
    assert str(directory) in caught.value.path
    return str(caught.value)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    rewrite(directory, model_layers_1_mlp_up_proj_weight=None)
    assert "tensor `model.layers.1.mlp.up_proj.weight` is missing" in complaint(directory)


def test_a_wrong_shape_is_named(directory: Path) -> None:
    rewrite(directory, model_norm_weight=torch.ones(7))
    text = complaint(directory)
    assert "tensor `model.norm.weight` has shape (7,), config.json implies (96,)" in text
    assert text.startswith(str(directory / "model.safetensors"))


def test_a_dtype_that_is_no_floating_one_is_named(directory: Path) -> None:
    tensors = tensors_of(directory)
    tensors["model.norm.weight"] = torch.ones(96, dtype=torch.int8)
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    assert "tensor `model.norm.weight` has dtype I8; dunlin reads F32, F16, BF16, F64" in complaint(directory)


@pytest.mark.parametrize("kept", [0, 5, 8, 100, 0.5, -1])
def test_a_truncated_file_is_named_wherever_it_ends(directory: Path, kept: float) -> None:
    file = directory / "model.safetensors"
    content = file.read_bytes()
    size = int(len(content) * kept) if isinstance(kept, float) else kept if kept >= 0 else len(content) + kept
    file.write_bytes(content[:size])
    assert "is truncated" in complaint(directory)


def header(values: Any, data: bytes = b"\0" * 16) -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<Q", len(text)) + text + data


BROKEN = {
    "header too large": b"\xff" * 64,
    "invalid JSON in header: key must be a string": struct.pack("<Q", 4) + b"{{{{" + b"\0" * 8,
    "invalid JSON in header: invalid type: sequence": header([1]),
    "missing field `shape`": header({"x": {"dtype": "F32"}}),
    "unknown variant `Q5`": header({"x": {"dtype": "Q5", "shape": [4], "data_offsets": [0, 16]}}),
    "invalid shape, data type, or offset": header({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}}),
    "invalid offset for tensor `x`": header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}),
    "integer `-1`, expected usize": header({"x": {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}}),
    "file not fully covered": header({"x": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}),
    "metadata, file not fully covered": header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_corrupt_file_is_named_with_its_fault(directory: Path, what: str) -> None:
    (directory / "model.safetensors").write_bytes(BROKEN[what])
    text = complaint(directory)
    assert text.startswith(f"{directory / 'model.safetensors'}: is truncated or corrupt (")
    assert what in text


def test_no_weights_at_all(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    assert "holds no model.safetensors and no index of shards" in complaint(directory)


def test_a_missing_shard_is_named(directory: Path) -> None:
    shard(directory)
    (directory / "model-2.safetensors").unlink()
    assert "model-2.safetensors: the index names this shard and it is not there" in complaint(directory)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"x": 3}}])
def test_a_broken_index_is_named(directory: Path, index: dict[str, Any]) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "has no `weight_map` from tensors to files" in complaint(directory)


def test_an_index_cannot_reach_out_of_its_directory(directory: Path) -> None:
    index = {"weight_map": {"x": "../../etc/passwd"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"{directory / 'passwd'}: the index names this shard" in complaint(directory)
