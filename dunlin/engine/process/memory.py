"""How many bytes of KV an engine has: as it was told, or what its share of the device's memory leaves."""

import sys
from collections.abc import Callable
from dataclasses import replace

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.loading.weights import TORCH_DTYPES
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.device.room import (
    StepLimits,
    free_room,
    share_bytes,
    shared_kv_bytes,
    work_space_bytes,
)
from dunlin.engine.process.options import EngineOptions
from dunlin.model.config import load_config
from dunlin.model.kv_dtypes import NARROW
from dunlin.model.memory_plan import ModelSizes, TooLittleMemory, kv_text, model_sizes, size_text
from dunlin.model.rank_part import rank_part
from dunlin.runtime.memory import FREE_WAIT_S


def with_kv_bytes(
    options: EngineOptions,
    device: EngineDevice,
    safepoint: Callable[[], None],
    least: Callable[[int], int] = lambda own: own,
    wait_s: float = FREE_WAIT_S,
) -> EngineOptions:
    """The options with `kv_bytes` found where they are 0, before anything lies on the device. Waits up to `wait_s` for
    memory that another process may be about to free. Of several ranks each has a device of its own, and all have as
    many bytes: `least` gives the least of what they could have.

    :raises ModelError: the model cannot be read.
    :raises TooLittleMemory: weights, the least KV and work space do not fit, or not what was told.
    """
    room = device.room
    if room is None:
        return options
    config = rank_part(load_config(options.model), options.rank, options.ranks).config
    item_bytes = TORCH_DTYPES[options.dtype].itemsize
    kv_item_bytes = NARROW.get(options.narrow_kv, item_bytes)
    sizes = model_sizes(config, item_bytes, device.memory.granule_bytes, kv_item_bytes=kv_item_bytes)
    if options.kv_bytes:
        own_bytes = options.kv_bytes // options.ranks
        needed = sizes.weights_bytes + own_bytes
        free, total = free_room(room.read, lambda whole: needed, safepoint, wait_s)
        _check_told(own_bytes, sizes, free, total)
        return options
    work = work_space_bytes(config, item_bytes, StepLimits(options.step_tokens, options.step_rows), room.library_bytes)
    context = room.context_bytes
    free, total = free_room(room.read, lambda whole: share_bytes(whole, options.gpu_share, context), safepoint, wait_s)
    own_bytes = shared_kv_bytes(total, free, options.gpu_share, work, context, sizes)
    return replace(options, kv_bytes=least(own_bytes) * options.ranks)


def _check_told(kv_bytes: int, sizes: ModelSizes, free: int, total: int) -> None:
    needed = sizes.weights_bytes + kv_bytes
    if free < needed:
        raise TooLittleMemory(
            f"{size_text(free)} of the device's {size_text(total)} are free, {size_text(needed)} are needed (weights "
            f"{size_text(sizes.weights_bytes)}, KV {size_text(kv_bytes)}): give less by --memory, --kv-mib or --slots, "
            "or end what else uses the device"
        )


def memory_text(loaded: LoadedModel, device: EngineDevice) -> str:
    """What was loaded, for the log. Of several ranks: this one's part of the weights and of the bytes of KV."""
    plan = loaded.arena.plan
    held = plan.outer + sum(plan.weights[layer] for layer in loaded.layers)
    total = size_text(device.room.read()[1]) if device.room is not None else ""
    kv_bytes = loaded.slots * plan.slot_bytes * len(loaded.layers)
    return kv_text(loaded.slots, kv_bytes, held * plan.granule_bytes, total and f"the device's {total}")


def say_memory(loaded: LoadedModel, options: EngineOptions, device: EngineDevice) -> None:
    """Write it into the log."""
    print(f"dunlin engine {options.name}: {memory_text(loaded, device)}", file=sys.stderr, flush=True)
