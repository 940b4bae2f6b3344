"""A checkpoint's tensors in arena memory, in the layout that the kernels use.

Knows the checkpoint and the blocks; knows neither steps nor KV.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import safe_open

from dunlin.engine.decoder.arena import Arena, granules_for
from dunlin.model.checkpoint_headers import TensorEntry, checkpoint_files, entries_of, find_entry, open_file
from dunlin.model.checkpoint_tensors import tensor_faults
from dunlin.model.config import ModelConfig
from dunlin.model.weight_layout import WeightBlock, block_offsets, layer_blocks, outer_blocks, total_bytes

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Weights:
    """Blocks by name: `outer` for the model, `layers[i]` for layer i. `digest` is their hash in this dtype."""

    outer: dict[str, torch.Tensor]
    layers: list[dict[str, torch.Tensor]]
    digest: str


class Checkpoint:
    """The tensors of a directory with `model.safetensors`, or with shards and their index. Files stay mapped until
    `close`.

    :raises ModelError: a file is missing, or broken.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries: dict[str, TensorEntry] = {}
        self._files: dict[Path, safe_open] = {}
        self._open = ExitStack()
        files, faults = checkpoint_files(directory)
        if faults:
            raise faults[0]
        for path in files:
            self._files[path] = self._open.enter_context(open_file(path, "pt"))
            self.entries.update(entries_of(path, self._files[path]))

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name` as a view of the mapped file: nothing is copied.

        :raises ModelError: no file of the checkpoint has it, or its dtype is not a floating one that dunlin reads.
        """
        tensor: torch.Tensor = self._files[find_entry(self.entries, name, self.directory).path].get_tensor(name)
        return tensor

    def close(self) -> None:
        """Close the files. A mapping ends with the last view of it."""
        self._open.close()


def weight_granules(config: ModelConfig, item_bytes: int) -> int:
    """Granules that the weights of `config` fill."""
    groups = [outer_blocks(config), *(layer_blocks(config, layer) for layer in range(config.layers))]
    return sum(granules_for(total_bytes(blocks, item_bytes)) for blocks in groups)


def load_weights(
    directory: Path, config: ModelConfig, dtype: torch.dtype, arena: Arena, safepoint: Callable[[], None]
) -> Weights:
    """Read the checkpoint in `directory` into ranges of `arena`: one for the outer blocks, one per layer.

    Passes a `safepoint` after each of them: loading for long is no hang.

    :raises ModelError: a missing or broken file, a missing tensor, a wrong shape.
    :raises MemoryError: the arena is too small.
    """
    checkpoint = Checkpoint(directory)
    for fault in tensor_faults(checkpoint.entries, config, directory):
        raise fault
    hasher = xxhash.xxh3_128()
    try:
        outer = _load_blocks(checkpoint, outer_blocks(config), dtype, arena, hasher)
        layers = []
        for layer in range(config.layers):
            safepoint()
            layers.append(_load_blocks(checkpoint, layer_blocks(config, layer), dtype, arena, hasher))
    finally:
        checkpoint.close()
    return Weights(outer, layers, hasher.hexdigest())


def _load_blocks(
    checkpoint: Checkpoint, blocks: Sequence[WeightBlock], dtype: torch.dtype, arena: Arena, hasher: xxhash.xxh3_128
) -> dict[str, torch.Tensor]:
    granules = granules_for(total_bytes(blocks, dtype.itemsize))
    stretch = arena.reserve(granules)
    stretch.grow(granules)
    flat = stretch.tensor(dtype)
    loaded = {}
    for block, offset in block_offsets(blocks, dtype.itemsize):
        first = offset // dtype.itemsize
        view = flat[first : first + block.items()].view(block.shape)
        _fill(checkpoint, block, view)
        hasher.update(f"{[part.name for part in block.parts]} {block.shape} {dtype}".encode())
        hasher.update(view.view(torch.uint8).numpy().data)
        loaded[block.name] = view
    return loaded


def _fill(checkpoint: Checkpoint, block: WeightBlock, view: torch.Tensor) -> None:
    for part, target in zip(block.parts, _slices(block, view), strict=True):
        wanted = checkpoint.tensor(part.name).to(target.dtype)
        if not torch.equal(target, wanted):  # what an earlier process left is not written again: another may read it
            target.copy_(wanted)


def _slices(block: WeightBlock, view: torch.Tensor) -> Iterator[torch.Tensor]:
    row = 0
    for part in block.parts:
        yield view[row : row + part.rows]
        row += part.rows
