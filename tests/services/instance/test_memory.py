"""How much KV an instance's engine gets."""

from typing import Any

import pytest

from dunlin.config.errors import ConfigError
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.memory_plan import model_sizes
from services.instance.memory import available_once, largest_step, told_kv_bytes
from services.instance.process_config import DEFAULT_KV_BYTES, InstanceProcessConfig
from tests.engine.build import make_checkpoint
from tests.settings import configured

MIB = 1 << 20
GRANULE = 1 << 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path_factory.mktemp("model")))


def config(**engine: Any) -> InstanceProcessConfig:
    given = {name if "__" in name else f"engine__{name}": value for name, value in engine.items()}
    return configured(InstanceProcessConfig, role="instance", **given)


def told(model: ModelConfig, available: int = 64 * MIB, **engine: Any) -> int:
    return told_kv_bytes(config(**engine), model, available)


def test_bytes_and_slots_are_taken_as_they_are_told(model: ModelConfig) -> None:
    assert told(model) == DEFAULT_KV_BYTES
    assert told(model, kv_bytes=9 * MIB) == 9 * MIB
    assert told(model, kv_bytes=9 * MIB, device="cuda:0") == 9 * MIB
    assert told(model, kv_cache__max_slots=1000) == 3 * (1000 * 256 + GRANULE)


def test_on_a_gpu_the_engine_finds_them(model: ModelConfig) -> None:
    assert told(model, device="cuda") == told(model, device="cuda:1") == 0
    assert told(model, device="interpret") == DEFAULT_KV_BYTES


def test_a_memory_is_left_to_kv_but_for_the_weights(model: ModelConfig) -> None:
    weights = model_sizes(model, 4, GRANULE).weights_bytes
    assert told(model, memory_bytes=20 * MIB) == 20 * MIB - weights
    assert told(model, memory_bytes=20 * MIB, dtype="bf16") == 20 * MIB - model_sizes(model, 2, GRANULE).weights_bytes
    assert told(model, memory_bytes=20 * MIB, ranks=2) == 20 * MIB - model_sizes(model, 4, GRANULE, 2).weights_bytes
    narrow = model_sizes(model, 4, GRANULE, kv_item_bytes=1)
    assert narrow.weights_bytes == weights
    assert narrow.least_kv_bytes < model_sizes(model, 4, GRANULE).least_kv_bytes
    assert told(model, memory_bytes=2 * MIB, kv_dtype="fp8") == 2 * MIB - weights, "enough, where fp32 is refused"
    assert told(model, kv_cache__max_slots=1000, kv_dtype="fp8") == 3 * (1000 * 64 + GRANULE)
    on_gpu = told(model, memory_bytes=80 * MIB, device="cuda:0")
    assert on_gpu == 80 * MIB - model_sizes(model, 4, 2 * MIB).weights_bytes


def test_a_memory_that_holds_too_little_is_refused(model: ModelConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        told(model, memory_bytes=2 * MIB)
    assert str(caught.value) == (
        "instance.engine.memory_bytes (--memory): 2.0 MiB are too little: 2.9 MiB are needed (weights 1.4 MiB, KV for "
        "2048 tokens 1.5 MiB): give more, take --dtype bf16, or take a model that is smaller"
    )
    with pytest.raises(ConfigError, match=r": give more, or take a model"):
        told(model, memory_bytes=MIB, dtype="bf16")


def test_a_memory_that_is_not_there_is_refused(model: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"65.0 MiB are more than the 64.0 MiB that this machine has available"):
        told(model, memory_bytes=65 * MIB)
    assert told(model, memory_bytes=65 * MIB, device="cuda:0") > 0  # it is not this machine's


def test_memory_of_an_instance_that_has_just_ended_is_waited_for() -> None:
    there, waits = [9 * MIB, 9 * MIB, 30 * MIB, 30 * MIB], list[float]()
    engine = config(memory_bytes=20 * MIB).engine
    assert available_once(engine, lambda: there.pop(0), sleep=waits.append) == 30 * MIB
    assert len(waits) == 2
    assert available_once(engine, lambda: 9 * MIB, wait_s=1.0, sleep=waits.append) == 9 * MIB
    assert sum(waits[2:]) == pytest.approx(1.0)
    gpu = config(memory_bytes=20 * MIB, device="cuda").engine
    assert available_once(gpu, lambda: 9 * MIB, sleep=lambda seconds: pytest.fail("waits for the host")) == 9 * MIB


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ({"kv_bytes": 9 * MIB, "memory_bytes": 20 * MIB}, "kv_bytes and engine.memory_bytes"),
        ({"kv_cache__max_slots": 9, "memory_bytes": 20 * MIB}, r"kv_cache.max_slots \(--slots\) both say how much KV"),
        ({"gpu_memory_utilization": 0.0}, "needs a share of the GPU's memory, above 0 and at most 1"),
        ({"gpu_memory_utilization": 1.1}, "above 0 and at most 1"),
    ],
)
def test_what_does_not_go_together_is_refused(engine: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        config(**engine)


def test_the_largest_step_is_that_of_any_policy() -> None:
    scheduler = config().scheduler
    assert largest_step(scheduler) == (scheduler.max_step_tokens, scheduler.max_running)
    assert largest_step(config(scheduler__budget_tokens=9000).scheduler) == (9000, 128)
    assert largest_step(config(scheduler__max_running=3000).scheduler) == (3000, 3000)
