"""Loads a decoder from a checkpoint directory: weights and KV in one arena."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from dunlin.engine.decoder.arena import GRANULE_BYTES, Arena, ArenaRange, granules_for
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.numerics import Numerics
from dunlin.engine.decoder.weights import TORCH_DTYPES, load_weights, weight_granules
from dunlin.model.config import ModelConfig, load_config


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder ready to compute. `weights_digest` names what KV depends on besides its tokens: the weights, and the
    configuration with its rope. `slots` is the least capacity over the layers, `quantum` what one granule adds to a
    layer.
    """

    decoder: Decoder
    arena: Arena
    config: ModelConfig
    weights_digest: str
    slots: int
    quantum: int
    kv_ranges: tuple[ArenaRange, ...]


def load_model(
    directory: Path,
    dtype: str,
    kv_bytes: int,
    numerics: Numerics,
    arena_fd: int,
    safepoint: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Load the checkpoint in `directory`; KV gets `kv_bytes` over all layers, rounded down to granules.

    The same arguments lay the arena out in the same way, so KV that an earlier process left in the memfd is found
    again.

    :raises ModelError: the checkpoint cannot be served.
    :raises ValueError: `kv_bytes` is too little for one granule in every layer.
    """
    config = load_config(directory)
    torch_dtype = TORCH_DTYPES[dtype]
    per_layer = kv_bytes // config.layers // GRANULE_BYTES
    slot_bytes = config.slot_bytes(torch_dtype.itemsize)
    slots = per_layer * GRANULE_BYTES // slot_bytes
    if not slots:
        least = config.layers * granules_for(slot_bytes) * GRANULE_BYTES
        raise ValueError(
            f"{kv_bytes} bytes of KV are less than one slot in each of {config.layers} layers: give at least {least}"
        )
    weights_in_granules = weight_granules(config, torch_dtype.itemsize)
    arena = Arena(arena_fd, weights_in_granules + per_layer * config.layers)
    weights = load_weights(directory, config, torch_dtype, arena, safepoint)
    ranges = tuple(_kv_range(arena, per_layer) for _ in range(config.layers))
    kv = [_kv_view(each, config, torch_dtype) for each in ranges]
    arena.check_integrity()
    decoder = Decoder(config, weights, kv, numerics)
    digest = xxhash.xxh3_128_hexdigest(f"{weights.digest} {config!r}".encode())
    return LoadedModel(decoder, arena, config, digest, slots, max(GRANULE_BYTES // slot_bytes, 1), ranges)


def _kv_range(arena: Arena, granules: int) -> ArenaRange:
    """Addresses for one layer's KV, reserved so that it could take the whole arena."""
    stretch = arena.reserve(arena.total)
    stretch.grow(granules)
    return stretch


def _kv_view(stretch: ArenaRange, config: ModelConfig, dtype: torch.dtype) -> Tensor:
    """One layer's KV, `[slot, 2, kv_heads, head_dim]`."""
    slot_items = config.slot_bytes(1)
    flat = stretch.tensor(dtype)
    reserved = flat.numel() // slot_items
    return flat[: reserved * slot_items].view(reserved, 2, config.kv_heads, config.head_dim)
