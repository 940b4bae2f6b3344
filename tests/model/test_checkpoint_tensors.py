"""A checkpoint's tensors against its configuration, by the headers of its files alone."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dunlin.model.checkpoint_headers import TensorEntry
from dunlin.model.checkpoint_tensors import read_headers, tensor_faults, wanted_tensors
from dunlin.model.config import parse_config

CONFIG: Any = parse_config(
    {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 10,
    },
    Path("config.json"),
)


def whole(directory: Path) -> dict[str, TensorEntry]:
    return {name: TensorEntry(directory / "f", "F32", shape) for name, shape in wanted_tensors(CONFIG)}


def test_every_tensor_of_every_layer_is_wanted_once() -> None:
    wanted = dict(wanted_tensors(CONFIG))
    assert len(wanted) == len(list(wanted_tensors(CONFIG))) == 3 + 2 * 12
    assert wanted["model.embed_tokens.weight"] == wanted["lm_head.weight"] == (10, 8)
    assert wanted["model.layers.1.mlp.up_proj.weight"] == (16, 8)
    assert wanted["model.layers.0.self_attn.k_proj.bias"] == (8,)


def test_a_whole_checkpoint_has_no_fault_and_may_hold_more(tmp_path: Path) -> None:
    entries = {**whole(tmp_path), "extra": TensorEntry(tmp_path / "f", "I8", (1,))}
    assert list(tensor_faults(entries, CONFIG, tmp_path)) == []


def test_every_fault_is_told_not_the_first_alone(tmp_path: Path) -> None:
    entries = whole(tmp_path)
    del entries["model.norm.weight"]
    entries["lm_head.weight"] = TensorEntry(tmp_path / "g", "F32", (8, 10))
    entries["model.layers.1.mlp.up_proj.weight"] = TensorEntry(tmp_path / "h", "I8", (16, 8))
    bias = "model.layers.1.self_attn.o_proj.bias"
    entries[bias] = TensorEntry(tmp_path / "i", "F32", (8,))
    faults = {fault.path: fault.what for fault in tensor_faults(entries, CONFIG, tmp_path)}
    assert faults == {
        str(tmp_path): "tensor `model.norm.weight` is missing",
        str(tmp_path / "g"): "tensor `lm_head.weight` has shape (8, 10), config.json implies (10, 8)",
        str(tmp_path / "h"): "tensor `model.layers.1.mlp.up_proj.weight` has dtype I8",
        str(tmp_path / "i"): f"tensor `{bias}` is a bias that config.json does not ask for",
    }


def test_an_output_matrix_beside_a_tied_embedding_must_be_the_same(tmp_path: Path) -> None:
    """transformers 5 takes the matrix where the two differ, as merged adapters leave them: ours would be ignored."""
    tied = replace(CONFIG, tied=True)
    made = {name: np.zeros(shape, np.float32) for name, shape in wanted_tensors(CONFIG)}
    save_file(made, tmp_path / "model.safetensors")
    assert list(tensor_faults(read_headers(tmp_path)[0], tied, tmp_path)) == []
    made["lm_head.weight"][9, 7] = 1
    save_file(made, tmp_path / "model.safetensors")
    assert list(tensor_faults(read_headers(tmp_path)[0], CONFIG, tmp_path)) == []
    (fault,) = tensor_faults(read_headers(tmp_path)[0], tied, tmp_path)
    assert fault.what == "tensor `lm_head.weight` differs from `model.embed_tokens.weight`, and config.json ties them"


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_any_floating_dtype_will_do(tmp_path: Path, dtype: str) -> None:
    entries = {name: TensorEntry(tmp_path, dtype, shape) for name, shape in wanted_tensors(CONFIG)}
    assert list(tensor_faults(entries, CONFIG, tmp_path)) == []


def test_headers_of_all_shards_are_read_and_a_broken_one_is_a_fault(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "1.safetensors")
    save_file({"b": np.zeros(4, np.float16)}, tmp_path / "2.safetensors")
    (tmp_path / "3.safetensors").write_bytes(b"no header")
    shards = {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors", "d": "4.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    entries, faults = read_headers(tmp_path)
    assert {name: entry.shape for name, entry in entries.items()} == {"a": (2, 3), "b": (4,)}
    assert sorted(fault.path for fault in faults) == [str(tmp_path / f"{n}.safetensors") for n in (3, 4)]


def test_a_tensor_that_two_shards_hold_with_other_numbers_is_a_fault(tmp_path: Path) -> None:
    same = np.ones(4, np.float16)
    save_file({"a": np.zeros(3, np.float32), "b": same}, tmp_path / "1.safetensors")
    save_file({"a": np.ones(3, np.float32), "b": same}, tmp_path / "2.safetensors")
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (fault,) = read_headers(tmp_path)[1]
    assert fault.path == str(tmp_path / "2.safetensors")
    assert fault.what == "tensor `a` is in 1.safetensors too, with other numbers"


def test_reading_headers_loads_no_torch(root: Path) -> None:
    program = "import dunlin.model.checkpoint_tensors, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False, timeout=300).returncode == 0
