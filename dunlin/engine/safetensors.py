"""The safetensors format: a checked reader that maps the file, and a plain writer.

Own code rather than the package's, because a broken file must name its fault and because tensors go straight into arena
memory. Knows nothing of models.
"""

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dunlin.engine.config import read_json
from dunlin.engine.errors import ModelError

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
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


class Checkpoint:
    """The tensors of a directory with `model.safetensors`, or with shards and their index. Files stay mapped until
    `close`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries: dict[str, Entry] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        for path in _files(directory):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                entries = _read_header(path, file.read(8), size, file.read)
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelError(path, f"cannot be read ({error.strerror or error})", REMEDY) from None
        self.entries.update(entries)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name` as a view of the mapped file.

        :raises ModelError: no file of the checkpoint has it, or its dtype is not a floating one that dunlin reads.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ModelError(
                self.directory, f"tensor `{name}` is missing", "use a complete checkpoint that fits its config.json"
            )
        if entry.dtype not in DTYPES:
            raise ModelError(
                entry.path, f"tensor `{name}` has dtype {entry.dtype}", f"dunlin reads {', '.join(DTYPES)}"
            )
        count = (entry.stop - entry.start) // DTYPES[entry.dtype].itemsize
        if not count:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        flat = torch.frombuffer(self._maps[entry.path], dtype=DTYPES[entry.dtype], count=count, offset=entry.start)
        return flat.view(entry.shape)

    def close(self) -> None:
        """Forget the files. The mappings go when the last view of them does."""
        self._maps.clear()


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        single = directory / "model.safetensors"
        if not single.is_file():
            raise ModelError(
                directory,
                "holds no model.safetensors and no index of shards",
                "give a checkpoint in safetensors format",
            )
        return [single]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(index, "has no `weight_map` from tensors to files", REMEDY)
    files = [directory / Path(name).name for name in sorted(set(names.values()))]
    for file in files:
        if not file.is_file():
            raise ModelError(file, "the index names this shard and it is not there", REMEDY)
    return files


def _read_header(path: Path, prefix: bytes, size: int, read: Any) -> dict[str, Entry]:
    if len(prefix) < 8:
        raise ModelError(path, f"is truncated: {size} bytes are no safetensors file", REMEDY)
    (length,) = struct.unpack("<Q", prefix)
    if length > min(size - 8, HEADER_BYTES_MAX):
        raise ModelError(
            path, f"is truncated or corrupt: it claims a header of {length} bytes in a file of {size}", REMEDY
        )
    try:
        header = json.loads(read(length))
    except ValueError:
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
    expected = items * DTYPES[dtype].itemsize if dtype in DTYPES else stop - start
    if not 0 <= start <= stop or min(shape, default=0) < 0 or expected != stop - start:
        raise ModelError(
            path, f"has a corrupt header entry for `{name}`: {stop - start} bytes for shape {shape} of {dtype}", REMEDY
        )
    return Entry(path, dtype, shape, data_start + start, data_start + stop)


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` in their order to one file."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
