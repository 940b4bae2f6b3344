"""How much memory KV gets: what was said, what is left of the engine's memory, or of the GPU's."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dunlin.engine.decoder.weights import weight_granules
from dunlin.engine.device.base import EngineDevice, cpu_device
from dunlin.engine.process.kv_memory import GIB, gpu_room, kv_bytes_of, size_text, work_bytes
from dunlin.engine.process.options import EngineOptions
from dunlin.model.config import ModelConfig, load_config
from tests.engine.build import make_checkpoint

WHOLE = 80 * GIB


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path_factory.mktemp("model")))


def options(**given: object) -> EngineOptions:
    made = EngineOptions(Path("/m"), "a", 7, os.getpid(), -1, -1, -1, kv_bytes=0)
    return replace(made, **given)  # type: ignore[arg-type]


def gpu(free: int) -> EngineDevice:
    return replace(cpu_device(), name="cuda:0", memory_info=lambda: (free, WHOLE))


def weights_of(config: ModelConfig, device: EngineDevice) -> int:
    outer, layers = weight_granules(config, 4, device.memory.granule_bytes)
    return (outer + sum(layers)) * device.memory.granule_bytes


def test_what_was_said_counts(config: ModelConfig) -> None:
    assert kv_bytes_of(options(kv_bytes=5 << 20, memory_bytes=1 << 30), gpu(WHOLE), config, 4) == 5 << 20


def test_memory_is_for_weights_and_kv(config: ModelConfig) -> None:
    device = cpu_device()
    found = kv_bytes_of(options(memory_bytes=64 << 20), device, config, 4)
    assert found == (64 << 20) - weights_of(config, device)


def test_a_gpu_has_its_share_less_what_is_used_there(config: ModelConfig) -> None:
    device = gpu(free=WHOLE - 3 * GIB)
    found = kv_bytes_of(options(memory_share=0.75), device, config, 4)
    assert found == 57 * GIB - weights_of(config, device) - work_bytes(config, 4)
    half_free = kv_bytes_of(options(memory_share=0.75), gpu(free=WHOLE // 2), config, 4)
    assert found - half_free == 37 * GIB


def test_work_space_grows_with_the_model(config: ModelConfig) -> None:
    wide = replace(config, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128256)
    # Of 32768 tokens hidden states three times, queries and attention's results, keys and values; gates; logits.
    assert work_bytes(wide, 2) == 32768 * 2 * (3 * 4096 + 2 * 4096 + 2 * 1024) + 4096 * 2 * 43008 + 3072 * 128256 + GIB


@pytest.mark.parametrize(
    ("given", "free", "said"),
    [
        ({"memory_bytes": 1 << 20}, WHOLE, "--memory 1.0 MiB: weights take "),
        ({"memory_share": 0.5}, WHOLE // 2, "cuda:0: 0.5 of 80.00 GiB, 40.00 GiB in use: weights take "),
    ],
)
def test_what_does_not_fit_is_refused(config: ModelConfig, given: dict[str, object], free: int, said: str) -> None:
    with pytest.raises(MemoryError) as refused:
        kv_bytes_of(options(**given), gpu(free), config, 4)
    assert str(refused.value).startswith(said)
    assert str(refused.value).endswith("or --dtype bf16")


def test_sizes_in_words() -> None:
    assert [size_text(size) for size in (3 * GIB // 2, 5 << 20)] == ["1.50 GiB", "5.0 MiB"]
    assert gpu_room(lambda: (60 * GIB, WHOLE), 0.9, "cuda:1") == (
        52 * GIB,
        "cuda:1: 0.9 of 80.00 GiB, 20.00 GiB in use",
    )
