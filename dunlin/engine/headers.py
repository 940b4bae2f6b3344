"""Which tensors a checkpoint has, read from the headers of its safetensors: names, dtypes, shapes, places in the files.

Loads no torch and reads no tensor, so that a checkpoint can be judged before anything is started.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.engine.config import read_json
from dunlin.engine.errors import ModelError

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
"""The dtypes that dunlin reads, and the bytes of one number."""
HEADER_BYTES_MAX = 100_000_000
REMEDY = "fetch or write the checkpoint again"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in one file: its bytes are `[start, stop)` of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def shards(directory: Path) -> tuple[list[Path], list[ModelError]]:
    """The files of a checkpoint, and what is wrong with their list: `model.safetensors`, or what an index names."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        single = directory / "model.safetensors"
        if single.is_file():
            return [single], []
        remedy = "give a checkpoint in safetensors format"
        return [], [ModelError(directory, "holds no model.safetensors and no index of shards", remedy)]
    try:
        names = read_json(index).get("weight_map")
    except ModelError as error:
        return [], [error]
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        return [], [ModelError(index, "has no `weight_map` from tensors to files", REMEDY)]
    files = [directory / Path(name).name for name in sorted(set(names.values()))]
    missing = [file for file in files if not file.is_file()]
    faults = [ModelError(file, "the index names this shard and it is not there", REMEDY) for file in missing]
    return [file for file in files if file not in missing], faults


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file.

    :raises ModelError: it cannot be read, is truncated, or has a corrupt header.
    """
    try:
        with path.open("rb") as file:
            return _parse(path, path.stat().st_size, file.read)
    except OSError as error:
        raise ModelError(path, f"cannot be read ({error.strerror or error})", REMEDY) from None


def find_entry(entries: Mapping[str, Entry], name: str, directory: Path) -> Entry:
    """The tensor `name` of the checkpoint in `directory`.

    :raises ModelError: no file of it has that tensor, or its dtype is not a floating one that dunlin reads.
    """
    entry = entries.get(name)
    if entry is None:
        remedy = "use a complete checkpoint that fits its config.json"
        raise ModelError(directory, f"tensor `{name}` is missing", remedy)
    if entry.dtype not in ITEM_BYTES:
        what = f"tensor `{name}` has dtype {entry.dtype}"
        raise ModelError(entry.path, what, f"dunlin reads {', '.join(ITEM_BYTES)}")
    return entry


def _parse(path: Path, size: int, read: Callable[[int], bytes]) -> dict[str, Entry]:
    prefix = read(8)
    if len(prefix) < 8:
        raise ModelError(path, f"is truncated: {size} bytes are no safetensors file", REMEDY)
    (length,) = struct.unpack("<Q", prefix)
    if length > min(size - 8, HEADER_BYTES_MAX):
        what = f"is truncated or corrupt: it claims a header of {length} bytes in a file of {size}"
        raise ModelError(path, what, REMEDY)
    try:
        header = json.loads(read(length))
    except (ValueError, RecursionError):
        raise ModelError(path, "has a corrupt header (no JSON)", REMEDY) from None
    if not isinstance(header, dict):
        raise ModelError(path, "has a corrupt header (no JSON object)", REMEDY)
    header.pop("__metadata__", None)
    return {name: _entry(path, name, spec, 8 + length, size) for name, spec in header.items()}


def _entry(path: Path, name: str, spec: Any, data_start: int, size: int) -> Entry:
    try:
        dtype, shape, (start, stop) = str(spec["dtype"]), tuple(map(int, spec["shape"])), map(int, spec["data_offsets"])
    except (TypeError, KeyError, ValueError):
        raise ModelError(path, f"has a corrupt header entry for `{name}`", REMEDY) from None
    if data_start + stop > size:
        raise ModelError(path, f"is truncated: `{name}` ends at byte {data_start + stop} of {size}", REMEDY)
    items = 1
    for extent in shape:
        items *= extent
    expected = items * ITEM_BYTES[dtype] if dtype in ITEM_BYTES else stop - start
    if not 0 <= start <= stop or min(shape, default=0) < 0 or expected != stop - start:
        raise ModelError(
            path, f"has a corrupt header entry for `{name}`: {stop - start} bytes for shape {shape} of {dtype}", REMEDY
        )
    return Entry(path, dtype, shape, data_start + start, data_start + stop)
