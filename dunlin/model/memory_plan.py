"""What a model takes of a memory, and what of it is left for KV: pure functions of sizes. Loads no torch, so that a
memory that is too small is refused before anything is loaded.
"""

from dataclasses import dataclass

from dunlin.model.config import ModelConfig
from dunlin.model.rank_part import rank_part
from dunlin.model.weight_layout import layer_blocks, outer_blocks, total_bytes

LEAST_TOKENS = 2048
"""KV is for so many tokens at least, or for the model's longest text if that is shorter: with less, usual prompts are
refused one by one, which is worse than a refusal at the start.
"""


class TooLittleMemory(ValueError):
    """Weights, a least KV and work space do not fit; the text says what is needed, what is there, what to do."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Bytes, in whole granules, of all ranks together: of the weights, and of KV for `least_tokens` tokens."""

    weights_bytes: int
    least_tokens: int
    least_kv_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that weights, KV and work space may take together, the setting that gave them, and how to get more."""

    limit_bytes: int
    source: str
    remedy: str
    work_bytes: int = 0


def model_sizes(
    config: ModelConfig, item_bytes: int, granule_bytes: int, ranks: int = 1, kv_item_bytes: int = 0
) -> ModelSizes:
    """The sizes of a model whose weights have items of `item_bytes`, and KV such of `kv_item_bytes` (0: as weights).

    :raises RankError: see `rank_part`.
    """
    least = min(config.max_positions, LEAST_TOKENS)
    weights = kv = 0
    for rank in range(ranks):
        part = rank_part(config, rank, ranks).config
        ranges = [outer_blocks(part), *(layer_blocks(part, layer) for layer in range(part.layers))]
        weights += sum(_whole(total_bytes(blocks, item_bytes), granule_bytes) for blocks in ranges)
        kv += kv_bytes_for(part, least, kv_item_bytes or item_bytes, granule_bytes)
    return ModelSizes(weights, least, kv)


def kv_bytes_for(config: ModelConfig, tokens: int, item_bytes: int, granule_bytes: int) -> int:
    """The least KV that has slots for so many tokens in every layer, bytes."""
    return config.layers * _whole(tokens * config.slot_bytes(item_bytes), granule_bytes)


def kv_left(limit: MemoryLimit, sizes: ModelSizes) -> int:
    """Bytes of KV that a limit leaves beside weights and work space.

    :raises TooLittleMemory: that is less than the least KV.
    """
    left = limit.limit_bytes - sizes.weights_bytes - limit.work_bytes
    if left >= sizes.least_kv_bytes:
        return left
    needed = sizes.weights_bytes + sizes.least_kv_bytes + limit.work_bytes
    work = f", work space {size_text(limit.work_bytes)}" if limit.work_bytes else ""
    raise TooLittleMemory(
        f"{limit.source}: {size_text(limit.limit_bytes)} are too little: {size_text(needed)} are needed (weights "
        f"{size_text(sizes.weights_bytes)}, KV for {sizes.least_tokens} tokens {size_text(sizes.least_kv_bytes)}{work})"
        f": {limit.remedy}"
    )


def size_text(size_bytes: int) -> str:
    """A size for people: in GiB from 1 GiB on, else in MiB."""
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.1f} MiB"


def kv_text(tokens: int, kv_bytes: int, weights_bytes: int, limit: str = "") -> str:
    """What a start says of memory; `limit` is the memory that weights and KV are a part of, in words."""
    of = f" of {limit}" if limit else ""
    return f"KV for {tokens:,} tokens ({size_text(kv_bytes)}{of}), weights {size_text(weights_bytes)}"


def _whole(size_bytes: int, granule_bytes: int) -> int:
    return -(-size_bytes // granule_bytes) * granule_bytes
