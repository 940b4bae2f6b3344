"""The tensors of a checkpoint, read from the headers of its safetensors files: names, dtypes, shapes.

Loads no torch and reads no tensor, so that a checkpoint can be judged before anything is started.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import eq
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dunlin.model.config_reader import read_json
from dunlin.model.errors import ModelError

DTYPES = ("F32", "F16", "BF16", "F64")
"""The dtypes that dunlin reads, as the format names them."""
REMEDY = "fetch or write the checkpoint again"
_PIECE_BYTES = 1 << 20
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in one file; `dtype` by its name in the format."""

    path: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of its numbers: the name of every dtype but BOOL, a byte each, holds its bits."""
        bits = re.search(r"\d+", self.dtype)
        return math.prod(self.shape) * (int(bits[0]) if bits else 8) // 8


def checkpoint_files(directory: Path) -> tuple[list[Path], list[ModelError]]:
    """The files of a checkpoint, `model.safetensors` or those in its index, and the faults of that list.

    Of an index and a single file the index has the say, unless all its shards are gone: transformers removes them where
    it writes a single file over them, and leaves the index.
    """
    index, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
    if not index.is_file():
        if single.is_file():
            return [single], []
        remedy = "give a checkpoint in safetensors format"
        if any(directory.glob("*.gguf")):
            return [], [ModelError(directory, "holds weights in GGUF, which dunlin does not read", remedy)]
        return [], [ModelError(directory, "holds no model.safetensors and no index of shards", remedy)]
    try:
        names = read_json(index).get("weight_map")
    except ModelError as error:
        return [], [error]
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        return [], [ModelError(index, "has no `weight_map` from tensors to files", REMEDY)]
    files = [directory / Path(name).name for name in sorted(set(names.values()))]
    missing = [file for file in files if not file.is_file()]
    if missing == files and single.is_file() and all(_SHARD.fullmatch(file.name) for file in files):
        return [single], []
    faults = [ModelError(file, "the index names this shard and it is not there", REMEDY) for file in missing]
    return [file for file in files if file not in missing], faults


def open_file(path: Path, framework: str) -> safe_open:
    """Map the file at `path` and check its header. `framework` is "pt" for tensors; "np" loads no torch.

    :raises ModelError: it cannot be read, is truncated, or has a corrupt header.
    """
    try:
        return safe_open(path, framework=framework)
    except OSError as error:
        raise ModelError(path, f"cannot be read ({error.strerror or error})", REMEDY) from None
    except SafetensorError as error:
        raise ModelError(path, f"is truncated or corrupt ({error})", REMEDY) from None


def entries_of(path: Path, file: safe_open) -> dict[str, TensorEntry]:
    """The tensors of `file`, which was opened at `path`."""
    parts = {name: file.get_slice(name) for name in sorted(file.keys())}
    return {name: TensorEntry(path, part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}


def doubled_faults(entries: Mapping[str, TensorEntry], more: Mapping[str, TensorEntry]) -> Iterator[ModelError]:
    """The tensors of another file, `more`, that `entries` have with other numbers: nothing says which of the two is the
    model's.
    """
    for name in sorted(entries.keys() & more.keys()):
        if not is_same(entries[name], name, more[name], name):
            what = f"tensor `{name}` is in {entries[name].path.name} too, with other numbers"
            yield ModelError(more[name].path, what, REMEDY)


def is_zero(entry: TensorEntry, name: str) -> bool:
    """Whether every byte of the tensor `name` is 0, whatever its dtype."""
    return not any(map(any, _pieces(entry, name)))


def is_same(first: TensorEntry, first_name: str, second: TensorEntry, second_name: str) -> bool:
    """Whether two tensors have the same numbers in the same shape, byte by byte."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    return all(map(eq, _pieces(first, first_name), _pieces(second, second_name)))


def _pieces(entry: TensorEntry, name: str) -> Iterator[bytes]:
    with entry.path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        first, last = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(first, os.SEEK_CUR)
        for start in range(first, last, _PIECE_BYTES):
            yield file.read(min(_PIECE_BYTES, last - start))


def find_entry(entries: Mapping[str, TensorEntry], name: str, directory: Path) -> TensorEntry:
    """The tensor `name` of the checkpoint in `directory`.

    :raises ModelError: no file of it has that tensor, or its dtype is not a floating one that dunlin reads.
    """
    entry = entries.get(name)
    if entry is None:
        remedy = "use a complete checkpoint that fits its config.json"
        raise ModelError(directory, f"tensor `{name}` is missing", remedy)
    if entry.dtype not in DTYPES:
        what = f"tensor `{name}` has dtype {entry.dtype}"
        raise ModelError(entry.path, what, f"dunlin reads {', '.join(DTYPES)}")
    return entry
