"""Headers of checkpoint files: which files there are, what they hold, and what is wrong with each. Loads no torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dunlin.model.checkpoint_headers import TensorEntry, checkpoint_files, entries_of, find_entry, open_file
from dunlin.model.errors import ModelError


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_single_file_is_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert checkpoint_files(tmp_path) == ([tmp_path / "model.safetensors"], [])


def test_an_index_names_each_shard_once_and_goes_before_a_single_file(tmp_path: Path) -> None:
    write_index(tmp_path, {"b": "2.safetensors", "a": "1.safetensors", "c": "1.safetensors"})
    for name in ("1.safetensors", "2.safetensors", "model.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert checkpoint_files(tmp_path) == ([tmp_path / "1.safetensors", tmp_path / "2.safetensors"], [])


def test_an_index_of_shards_that_are_all_gone_goes_behind_a_single_file(tmp_path: Path) -> None:
    """transformers' `save_pretrained` removes the shards that a smaller model replaces, and leaves their index."""
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert checkpoint_files(tmp_path) == ([tmp_path / "model.safetensors"], [])
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"")
    files, faults = checkpoint_files(tmp_path)
    assert files == [tmp_path / "model-00002-of-00002.safetensors"]
    assert [fault.path for fault in faults] == [str(tmp_path / "model-00001-of-00002.safetensors")]


def test_a_shard_that_is_missing_is_a_fault_and_the_others_are_still_read(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    (tmp_path / "2.safetensors").write_bytes(b"")
    files, faults = checkpoint_files(tmp_path)
    assert files == [tmp_path / "2.safetensors"]
    assert [fault.path for fault in faults] == [str(tmp_path / "1.safetensors")]


def test_an_index_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "../../etc/passwd"})
    files, faults = checkpoint_files(tmp_path)
    assert (files, [fault.path for fault in faults]) == ([], [str(tmp_path / "passwd")])


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 3}])
def test_an_index_without_a_map_is_a_fault(tmp_path: Path, weight_map: Any) -> None:
    write_index(tmp_path, weight_map)
    files, (fault,) = checkpoint_files(tmp_path)
    assert files == []
    assert "has no `weight_map` from tensors to files" in str(fault)


def test_an_empty_directory_and_a_broken_index_are_faults(tmp_path: Path) -> None:
    assert "holds no model.safetensors and no index of shards" in str(checkpoint_files(tmp_path)[1][0])
    (tmp_path / "model.safetensors.index.json").write_text("{")
    files, faults = checkpoint_files(tmp_path)
    assert (files, len(faults)) == ([], 1)


def test_entries_say_the_dtype_and_shape_of_every_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"b": np.zeros((2, 3), np.float16), "a": np.zeros(5, np.int8), "s": np.zeros((), np.float64)}, path)
    with open_file(path, "np") as file:
        assert entries_of(path, file) == {
            "a": TensorEntry(path, "I8", (5,)),
            "b": TensorEntry(path, "F16", (2, 3)),
            "s": TensorEntry(path, "F64", ()),
        }


def test_a_file_that_cannot_be_read_or_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_file(tmp_path / "none", "np")
    (tmp_path / "short").write_bytes(b"\x10")
    with pytest.raises(ModelError, match=f"{tmp_path / 'short'}: is truncated or corrupt"):
        open_file(tmp_path / "short", "np")


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("F32", (2, 3), 24),
        ("BF16", (5,), 10),
        ("F64", (), 8),
        ("F8_E4M3", (7,), 7),
        ("BOOL", (3,), 3),
        ("I8", (0, 4), 0),
    ],
)
def test_the_size_of_a_tensor_follows_from_its_dtypes_name(dtype: str, shape: tuple[int, ...], size: int) -> None:
    assert TensorEntry(Path("f"), dtype, shape).size_bytes == size


def test_a_tensor_is_found_unless_it_is_missing_or_no_floating_one(tmp_path: Path) -> None:
    entries = {"a": TensorEntry(tmp_path / "f", "BF16", (1,)), "b": TensorEntry(tmp_path / "g", "I8", (1,))}
    assert find_entry(entries, "a", tmp_path) is entries["a"]
    with pytest.raises(ModelError, match="tensor `c` is missing") as missing:
        find_entry(entries, "c", tmp_path)
    assert missing.value.path == str(tmp_path)
    with pytest.raises(ModelError, match="tensor `b` has dtype I8; dunlin reads F32, F16, BF16, F64") as strange:
        find_entry(entries, "b", tmp_path)
    assert strange.value.path == str(tmp_path / "g")
