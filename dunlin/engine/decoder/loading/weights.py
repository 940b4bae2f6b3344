"""A checkpoint's tensors in arena memory, in the layout that the kernels use, and the digests that name them.

Knows the checkpoint and the blocks; knows neither steps nor KV.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open
from torch import Tensor

from dunlin.engine.decoder.memory.layer_layout import granules_for
from dunlin.engine.decoder.quantized.methods import open_rows
from dunlin.engine.decoder.quantized.module import ROW_STEP, ModuleTensors
from dunlin.model.checkpoint_headers import (
    TensorEntry,
    checkpoint_files,
    doubled_faults,
    entries_of,
    find_entry,
    open_file,
)
from dunlin.model.config import ModelConfig
from dunlin.model.quantization.module_tensors import WEIGHT, find_module_tensor, scheme_at
from dunlin.model.quantization.scheme import Quantization, WeightScheme
from dunlin.model.rank_part import RankPart
from dunlin.model.weight_layout import WeightBlock, block_offsets, layer_blocks, outer_blocks, part_shapes, total_bytes

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PIECE_BYTES = 1 << 20
"""Bytes of weights that are copied or hashed at a time."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Blocks by name: `outer` for the model, `layers[i]` for layer i; a layer that is not held is absent.

    `digest` names the weights of all layers in this dtype, held or not (`root_digest`).
    """

    outer: dict[str, Tensor]
    layers: dict[int, dict[str, Tensor]]
    digest: str


@dataclass(frozen=True, slots=True)
class WeightRoom:
    """The memory of one group of blocks: as one tensor of bytes `[total_bytes]`, and block by block.

    Blocks begin at `block_offsets`; the bytes between them mean nothing.
    """

    blocks: Sequence[WeightBlock]
    content: Tensor
    views: dict[str, Tensor]


def weight_room(flat: Tensor, blocks: Sequence[WeightBlock]) -> WeightRoom:
    """The blocks in `flat`, a one-dimensional tensor in the weights' dtype that may be longer."""
    item_bytes = flat.dtype.itemsize
    views = {}
    for block, offset in block_offsets(blocks, item_bytes):
        first = offset // item_bytes
        views[block.name] = flat[first : first + block.items()].view(block.shape)
    content = flat[: total_bytes(blocks, item_bytes) // item_bytes].view(torch.uint8)
    return WeightRoom(blocks, content, views)


def weight_granules(config: ModelConfig, item_bytes: int, granule_bytes: int) -> tuple[int, tuple[int, ...]]:
    """Granules that the outer weights fill, and those of each layer."""

    def count(blocks: Sequence[WeightBlock]) -> int:
        return granules_for(total_bytes(blocks, item_bytes), granule_bytes)

    return count(outer_blocks(config)), tuple(count(layer_blocks(config, layer)) for layer in range(config.layers))


class Checkpoint:
    """The tensors of a directory with `model.safetensors`, or with shards and their index. Files stay mapped until
    `close`. `quantization`: how its config.json says that weights are stored.

    :raises ModelError: a file is missing, or broken, or two hold a tensor with other numbers.
    """

    def __init__(self, directory: Path, quantization: Quantization | None = None) -> None:
        self.directory = directory
        self._quantization = quantization
        self.entries: dict[str, TensorEntry] = {}
        self._files: dict[Path, safe_open] = {}
        self._open = ExitStack()
        files, faults = checkpoint_files(directory)
        if faults:
            raise faults[0]
        for path in files:
            self._files[path] = self._open.enter_context(open_file(path, "pt"))
            found = entries_of(path, self._files[path])
            for fault in doubled_faults(self.entries, found):
                raise fault
            self.entries.update(found)

    @property
    def identity(self) -> bytes:
        """16 bytes that differ once a file was written again: its name, size and time of change; or once quantised
        weights are read otherwise.
        """
        stats = [(path.name, path.stat()) for path in sorted(self._files)]
        named = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats]
        read_as = "" if self._quantization is None else repr(self._quantization)
        return xxhash.xxh3_128_digest(f"{named!r}{read_as}".encode())

    def tensor(self, name: str) -> Tensor:
        """The tensor `name` as a view of the mapped file: nothing is copied.

        :raises ModelError: no file of the checkpoint has it, or its dtype is not a floating one that dunlin reads.
        """
        tensor: Tensor = self._files[find_entry(self.entries, name, self.directory).path].get_tensor(name)
        return tensor

    def row_pieces(self, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """The rows of `name` from first to last, about `PIECE_BYTES` at a time: in the checkpoint's dtype, or in
        float32 where they are dequantised.

        :raises ModelError: as `tensor`; or quantised weights hold what no writer of them means.
        """
        scheme = scheme_at(self.entries, self._quantization, name, shape)
        if scheme is None:
            tensor = self.tensor(name)
            count = max(PIECE_BYTES // max(tensor[:1].nbytes, 1), 1)
            for row in range(0, shape[0], count):
                yield tensor[row : row + count]
        else:
            rows = open_rows(scheme, self._module(name.removesuffix(WEIGHT), scheme, shape))
            count = max(PIECE_BYTES // (4 * shape[1]) // ROW_STEP, 1) * ROW_STEP
            for row in range(0, shape[0], count):
                yield rows(row, min(row + count, shape[0]))

    def _module(self, module: str, scheme: WeightScheme, shape: tuple[int, ...]) -> ModuleTensors:
        """The tensors of a quantised module, by the suffix that its scheme knows."""
        found = {}
        for wanted in scheme.tensors(*shape):
            name = find_module_tensor(self.entries, module, wanted)
            if name is not None:
                found[wanted.suffix] = self._files[self.entries[name].path].get_tensor(name)
        return ModuleTensors(self.directory, module, shape, found)

    def close(self) -> None:
        """Close the files. A mapping ends with the last view of it."""
        self._open.close()


def fill_pieces(checkpoint: Checkpoint, room: WeightRoom) -> Iterator[int]:
    """Copy and convert the checkpoint's tensors into `room`; yields bytes written after each piece."""
    for block in room.blocks:
        yield from _fill_block(room.views[block.name], _stacked_rows(checkpoint, block))


def fill_part(checkpoint: Checkpoint, room: WeightRoom, part: RankPart) -> Iterator[int]:
    """As `fill_pieces`, with a rank's part of the tensors."""
    for block in room.blocks:
        read = _rank_rows(checkpoint, block, part) if part.is_cut(block) else _stacked_rows(checkpoint, block)
        yield from _fill_block(room.views[block.name], read)


def _fill_block(target: Tensor, read: Iterator[Tensor]) -> Iterator[int]:
    for rows in read:
        target[: len(rows)].copy_(rows)
        yield len(rows) * target[:1].nbytes
        target = target[len(rows) :]


def digest_pieces(room: WeightRoom, hasher: Any) -> Iterator[int]:
    """Hash what lies in `room`; yields bytes hashed after each piece."""
    for block in room.blocks:
        view = room.views[block.name]
        hasher.update(_block_header(block, view.dtype))
        content = view.view(-1).view(torch.uint8)
        for at in range(0, len(content), PIECE_BYTES):
            piece = content[at : at + PIECE_BYTES].cpu().numpy()
            hasher.update(piece.data)
            yield len(piece)


def digest_of(room: WeightRoom) -> bytes:
    """The digest of what lies in `room`: 16 bytes."""
    hasher = xxhash.xxh3_128()
    for _ in digest_pieces(room, hasher):
        pass
    return hasher.digest()


def checkpoint_digest(checkpoint: Checkpoint, blocks: Sequence[WeightBlock], dtype: torch.dtype) -> bytes:
    """The digest that `blocks` will have once they are loaded, without memory for them."""
    hasher = xxhash.xxh3_128()
    for block in blocks:
        hasher.update(_block_header(block, dtype))
        for rows in _stacked_rows(checkpoint, block):
            hasher.update(rows.to(dtype).contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.digest()


def root_digest(outer: bytes, layers: Sequence[bytes]) -> str:
    """What names a model's weights in one dtype: the hash of the outer blocks' digest and every layer's, in order."""
    return xxhash.xxh3_128_hexdigest(outer + b"".join(layers))


def _block_header(block: WeightBlock, dtype: torch.dtype) -> bytes:
    return f"{[part.name for part in block.parts]} {block.shape} {dtype}".encode()


def _rank_rows(checkpoint: Checkpoint, block: WeightBlock, part: RankPart) -> Iterator[Tensor]:
    """A rank's rows and columns of a block, a piece at a time."""
    start, columns = 0, part.columns(block)
    for rows in _stacked_rows(checkpoint, part.whole_block(block)):
        stop = start + len(rows)
        for kept in part.rows(block):
            first, last = max(kept.start, start), min(kept.stop, stop)
            if first < last:
                own = rows[first - start : last - start]
                yield own if own.ndim == 1 else own[:, columns]
        start = stop


def _stacked_rows(checkpoint: Checkpoint, block: WeightBlock) -> Iterator[Tensor]:
    """The rows of a block from first to last, a piece at a time."""
    for part, (_, shape) in zip(block.parts, part_shapes(block), strict=True):
        yield from checkpoint.row_pieces(part.name, shape)
