"""How much KV an instance's engine gets: a number of slots, of bytes, what a memory leaves beside the weights, or what
its share of a GPU leaves, which the engine itself finds.
"""

import time
from collections.abc import Callable

from dunlin.config.errors import ConfigError
from dunlin.engine.device.names import CUDA, device_kind, granule_bytes
from dunlin.model.config import ModelConfig
from dunlin.model.memory_plan import MemoryLimit, TooLittleMemory, kv_left, model_sizes, size_text
from dunlin.runtime.memory import FREE_WAIT_S, available_memory_bytes, look_until
from services.instance.config import SchedulerConfig
from services.instance.process_config import DEFAULT_KV_BYTES, EngineConfig, InstanceProcessConfig


def told_kv_bytes(config: InstanceProcessConfig, model: ModelConfig, available_bytes: int | None = None) -> int:
    """Bytes of KV over all layers; 0: the engine is to find them. `available_bytes` on the host, if not as the kernel
    tells.

    Raises:
        ConfigError: the memory given holds too little, or there is not so much.
    """
    engine, slots = config.engine, config.kv_cache.max_slots
    if slots:
        # A granule more per layer and rank than the slots fill: the engine rounds down, the core caps at max_slots.
        spare_bytes = engine.ranks * granule_bytes(engine.device)
        return model.layers * (slots * model.slot_bytes(engine.kv_item_bytes) + spare_bytes)
    if engine.kv_bytes:
        return engine.kv_bytes
    if engine.memory_bytes:
        return _kv_within(engine, model, available_once(engine) if available_bytes is None else available_bytes)
    return 0 if device_kind(engine.device) == CUDA else DEFAULT_KV_BYTES


def available_once(
    engine: EngineConfig,
    look: Callable[[], int] = available_memory_bytes,
    wait_s: float = FREE_WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """The host's available bytes once they are what the engine may have, or after `wait_s`: an instance that is started
    again after a crash comes before all memory of the last one is free.
    """
    if device_kind(engine.device) == CUDA:
        return look()
    return look_until(look, lambda there: there >= engine.memory_bytes, wait_s, sleep=sleep)


def largest_step(scheduler: SchedulerConfig) -> tuple[int, int]:
    """Tokens and rows of the largest step. `prefill_first` may compute a longer prompt whole; its work space is then
    what the GPU has beyond the share.
    """
    rows = scheduler.max_running
    return max(scheduler.budget_tokens, scheduler.max_step_tokens, rows), rows


def _kv_within(engine: EngineConfig, model: ModelConfig, available_bytes: int) -> int:
    given, size = engine.memory_bytes, size_text(engine.memory_bytes)
    if device_kind(engine.device) != CUDA and given > available_bytes:
        there = size_text(available_bytes)
        raise ConfigError(
            f"instance.engine.memory_bytes (--memory): {size} are more than the {there} that this machine has "
            "available, or its control group allows: give less, or end what else uses memory"
        )
    half = "" if engine.dtype == "bf16" else " take --dtype bf16,"
    limit = MemoryLimit(
        given, "instance.engine.memory_bytes (--memory)", f"give more,{half} or take a model that is smaller"
    )
    granule = granule_bytes(engine.device)
    sizes = model_sizes(model, engine.item_bytes, granule, engine.ranks, engine.kv_item_bytes)
    try:
        return kv_left(limit, sizes)
    except TooLittleMemory as error:
        raise ConfigError(str(error)) from None
