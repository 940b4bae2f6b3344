"""The safetensors format: a checked reader that maps the file, and a plain writer.

Own code rather than the package's, because a broken file must name its fault and because tensors go straight into arena
memory. Knows nothing of models.
"""

import json
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dunlin.engine.errors import ModelError
from dunlin.engine.headers import REMEDY, Entry, find_entry, read_header, shards

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


class Checkpoint:
    """The tensors of a directory with `model.safetensors`, or with shards and their index. Files stay mapped until
    `close`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries: dict[str, Entry] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        files, faults = shards(directory)
        if faults:
            raise faults[0]
        for path in files:
            self._open(path)

    def _open(self, path: Path) -> None:
        entries = read_header(path)
        try:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelError(path, f"cannot be read ({error.strerror or error})", REMEDY) from None
        self.entries.update(entries)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name` as a view of the mapped file.

        :raises ModelError: no file of the checkpoint has it, or its dtype is not a floating one that dunlin reads.
        """
        entry = find_entry(self.entries, name, self.directory)
        count = (entry.stop - entry.start) // DTYPES[entry.dtype].itemsize
        if not count:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        flat = torch.frombuffer(self._maps[entry.path], dtype=DTYPES[entry.dtype], count=count, offset=entry.start)
        return flat.view(entry.shape)

    def close(self) -> None:
        """Forget the files. The mappings go when the last view of them does."""
        self._maps.clear()


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
