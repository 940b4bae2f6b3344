"""Reads the matrices of adapters from their files, in the engine's dtype and fused as the model's own weights are."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.decoder.lora.deltas import BlockDelta, DeltaPart, Deltas
from dunlin.model.checkpoint_headers import open_file
from dunlin.model.config import ModelConfig
from dunlin.model.errors import ModelError
from dunlin.model.lora.adapter import ADAPTED_BLOCKS, LoraAdapter, load_adapter
from dunlin.model.weight_layout import WeightBlock, layer_blocks

LayerDeltas = Mapping[str, Deltas]
"""By the block's name."""


@dataclass(frozen=True, slots=True)
class AdapterSet:
    """The adapters that an engine has. `numbers` by digest, from 1; `layers[i]` has the deltas of layer i."""

    numbers: Mapping[str, int]
    layers: Sequence[LayerDeltas]
    size_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def number_of(self, digest: str) -> int | None:
        """The number of that adapter, 0 for "" (none); None: it is not here."""
        return self.numbers.get(digest) if digest else 0


NO_ADAPTERS = AdapterSet({}, ())
HOST = torch.device("cpu")


def load_adapters(
    wanted: Mapping[str, Path], config: ModelConfig, dtype: torch.dtype, device: torch.device = HOST
) -> AdapterSet:
    """The adapters in those directories, by the digest that each must have; on `device`.

    :raises ModelError: one cannot be served with this model, holds what is no number, or is another one by now.
    """
    if not wanted:
        return NO_ADAPTERS
    layers: list[dict[str, dict[int, BlockDelta]]] = [{} for _ in range(config.layers)]
    size_bytes = 0
    for number, (digest, directory) in enumerate(wanted.items(), 1):
        adapter = load_adapter(directory, config)
        if adapter.digest != digest:
            raise ModelError(directory, "has changed since the instance was started", "start the instance again")
        with _tensors(adapter) as file:
            for layer, found in enumerate(layers):
                for block in layer_blocks(config, layer):
                    delta = _read_block(adapter, block, file, dtype)
                    if delta is not None:
                        delta = delta.to(device)
                        found.setdefault(block.name, {})[number] = delta
                        size_bytes += delta.down.nbytes + sum(part.up.nbytes for part in delta.parts)
    return AdapterSet({digest: number for number, digest in enumerate(wanted, 1)}, layers, size_bytes)


def _tensors(adapter: LoraAdapter) -> AbstractContextManager[Any]:
    return open_file(adapter.file, "pt")


def _read_block(adapter: LoraAdapter, block: WeightBlock, file: Any, dtype: torch.dtype) -> BlockDelta | None:
    """None: the adapter changes nothing in that block."""
    if block.name not in ADAPTED_BLOCKS:
        return None
    downs: list[Tensor] = []
    parts: list[DeltaPart] = []
    row = rank = 0
    for part in block.parts:
        module = adapter.modules.get(part.name.removesuffix(".weight"))
        if module is not None:
            downs.append(_number_tensor(adapter, file, module.down).to(dtype))
            # The scale in float32, before the one rounding.
            up = (_number_tensor(adapter, file, module.up).float() * module.scale).to(dtype).contiguous()
            parts.append(DeltaPart(slice(rank, rank + module.rank), slice(row, row + part.rows), up))
            rank += module.rank
        row += part.rows
    return BlockDelta(torch.cat(downs).contiguous(), tuple(parts)) if parts else None


def _number_tensor(adapter: LoraAdapter, file: Any, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(name)
    if not bool(tensor.isfinite().all()):
        raise ModelError(adapter.file, f"tensor `{name}` holds what is no finite number", "fetch the adapter again")
    return tensor
