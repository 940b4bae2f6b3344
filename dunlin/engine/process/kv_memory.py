"""How much memory an engine's KV gets: so many bytes, what is left of the engine's, or of the GPU's."""

from collections.abc import Callable

from dunlin.engine.decoder.weights import weight_granules
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.process.options import EngineOptions
from dunlin.model.config import ModelConfig

GIB = 1 << 30
WORK_TOKENS, LOGIT_ROWS, FIXED_BYTES = 1 << 15, 256, GIB
"""The largest step that room is kept for, the rows of logits, and what libraries and recorded steps take."""


def kv_bytes_of(options: EngineOptions, device: EngineDevice, config: ModelConfig, item_bytes: int) -> int:
    """The bytes of KV over all layers.

    :raises MemoryError: weights and KV of one token do not fit; the text says what to do.
    """
    if options.kv_bytes:
        return options.kv_bytes
    granule = device.memory.granule_bytes
    outer, layers = weight_granules(config, item_bytes, granule)
    weights = granule * (outer + sum(layers))
    least = config.layers * granule
    if options.memory_bytes:
        remedy = "a larger --memory, or --dtype bf16"
        return _left(options.memory_bytes, f"--memory {size_text(options.memory_bytes)}", weights, 0, least, remedy)
    assert device.memory_info is not None, "the instance says how much KV there is where the device does not"
    room, told = gpu_room(device.memory_info, options.memory_share, device.name)
    remedy = "a larger --gpu-memory-utilization, fewer instances on this GPU, or --dtype bf16"
    return _left(room, told, weights, work_bytes(config, item_bytes), least, remedy)


def gpu_room(memory_info: Callable[[], tuple[int, int]], share: float, name: str) -> tuple[int, str]:
    """What an engine may use of a GPU, in bytes and in words: its share of all, less what is in use there."""
    free, total = memory_info()
    in_use = total - free
    return int(total * share) - in_use, f"{name}: {share:g} of {size_text(total)}, {size_text(in_use)} in use"


def work_bytes(config: ModelConfig, item_bytes: int) -> int:
    """Beside weights and KV: the hidden states of a long prompt's step (as they are, with queries, keys and values, and
    what attention gives), a block of its MLP, and logits in fp32 as they are, changed and sorted.
    """
    width = config.hidden + config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    hidden = WORK_TOKENS * item_bytes * (2 * config.hidden + width)
    block = 4096 * item_bytes * 3 * config.intermediate
    return hidden + block + 3 * 4 * LOGIT_ROWS * config.vocab + FIXED_BYTES


def _left(room: int, told: str, weights: int, work: int, least: int, remedy: str) -> int:
    left = room - weights - work
    if left < least:
        what = f"weights take {size_text(weights)}" + (f", work space {size_text(work)}" if work else "")
        raise MemoryError(f"{told}: {what}, and KV {size_text(least)} at least: {remedy}")
    return left


def size_text(size: int) -> str:
    """In GiB, or in MiB where that is less than one."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"
