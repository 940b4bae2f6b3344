"""What a model takes of a memory, and what is left for KV."""

from pathlib import Path

import pytest
import torch

from dunlin.engine.decoder.loading.loader import model_memory
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.memory_plan import (
    LEAST_TOKENS,
    MemoryLimit,
    ModelSizes,
    TooLittleMemory,
    kv_bytes_for,
    kv_left,
    kv_text,
    model_sizes,
    size_text,
)
from tests.engine.build import make_checkpoint

MIB = 1 << 20
SIZES = ModelSizes(weights_bytes=100 * MIB, least_tokens=2048, least_kv_bytes=20 * MIB)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path_factory.mktemp("model")))


def limit(mib: int, work_mib: int = 0) -> MemoryLimit:
    return MemoryLimit(mib * MIB, "--memory", "give more", work_mib * MIB)


def test_what_weights_and_work_leave_is_kv() -> None:
    assert kv_left(limit(500), SIZES) == 400 * MIB
    assert kv_left(limit(500, work_mib=50), SIZES) == 350 * MIB
    assert kv_left(limit(120), SIZES) == SIZES.least_kv_bytes


def test_less_than_the_least_kv_is_refused_with_what_is_needed_and_what_to_do() -> None:
    with pytest.raises(TooLittleMemory) as caught:
        kv_left(limit(119), SIZES)
    assert str(caught.value) == (
        "--memory: 119.0 MiB are too little: 120.0 MiB are needed (weights 100.0 MiB, KV for 2048 tokens 20.0 MiB): "
        "give more"
    )
    with pytest.raises(TooLittleMemory, match=r"170.0 MiB are needed .*, work space 50.0 MiB\): give more"):
        kv_left(limit(169, work_mib=50), SIZES)


def test_the_sizes_are_those_of_the_arena_that_is_loaded(config: ModelConfig) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for granule_bytes in (GRANULE_BYTES, 2 * MIB):
            sizes = model_sizes(config, dtype.itemsize, granule_bytes)
            plan = model_memory(config, dtype, sizes.least_kv_bytes, granule_bytes).plan
            assert sizes.weights_bytes == (plan.outer + sum(plan.weights)) * granule_bytes
            assert plan.granules * granule_bytes == sizes.weights_bytes + sizes.least_kv_bytes
            assert plan.slots(sizes.least_kv_bytes // granule_bytes // config.layers) >= sizes.least_tokens


def test_the_least_is_for_the_longest_text_where_that_is_shorter(tmp_path: Path) -> None:
    short = load_config(make_checkpoint(tmp_path, max_positions=64))
    assert model_sizes(short, 4, 1).least_tokens == 64
    assert model_sizes(short, 4, 1).least_kv_bytes == kv_bytes_for(short, 64, 4, 1) == 3 * 64 * 2 * 2 * 16 * 4
    assert model_sizes(load_config(make_checkpoint(tmp_path, seed=1)), 4, 1).least_tokens == LEAST_TOKENS


def test_every_rank_has_weights_that_no_other_has_a_part_of(config: ModelConfig) -> None:
    one, two = model_sizes(config, 4, 1), model_sizes(config, 4, 1, ranks=2)
    assert two.least_kv_bytes == one.least_kv_bytes
    assert one.weights_bytes < two.weights_bytes < 2 * one.weights_bytes


def test_sizes_are_written_for_people() -> None:
    assert [size_text(size) for size in (MIB // 2, 1023 * MIB, 1 << 30, 80 << 30)] == [
        "0.5 MiB", "1023.0 MiB", "1.0 GiB", "80.0 GiB"
    ]  # fmt: skip
    assert kv_text(65536, 2 << 30, MIB) == "KV for 65,536 tokens (2.0 GiB), weights 1.0 MiB"
    assert kv_text(10, MIB, MIB, "--memory 2 MiB") == "KV for 10 tokens (1.0 MiB of --memory 2 MiB), weights 1.0 MiB"
