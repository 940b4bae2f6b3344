"""How much of a GPU's memory an engine has."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dunlin.engine.attention.tile_sizes import split_counts
from dunlin.engine.device.host_driver import HostMemoryDriver
from dunlin.engine.device.room import (
    CUDA_LIBRARY_BYTES,
    LOGIT_BYTES,
    LONG_STEP_TOKENS,
    StepLimits,
    free_room,
    shared_kv_bytes,
    work_space_bytes,
)
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.layer_config import ExpertConfig
from dunlin.model.memory_plan import ModelSizes, TooLittleMemory
from tests.engine.build import make_checkpoint

GIB = 1 << 30
SIZES = ModelSizes(weights_bytes=16 * GIB, least_tokens=2048, least_kv_bytes=GIB)
WORK, CONTEXT = 2 * GIB, GIB


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path_factory.mktemp("model")))


def kv_gib(total: int, free: int, share: float) -> float:
    return shared_kv_bytes(total * GIB, free * GIB, share, WORK, CONTEXT, SIZES) / GIB


def test_a_share_of_the_whole_is_left_less_weights_work_and_the_process() -> None:
    assert kv_gib(80, 79, 0.75) == 60 - 1 - 2 - 16
    assert kv_gib(80, 79, 1.0) == 79 - 2 - 16
    assert kv_gib(80, 79, 0.375) == 30 - 1 - 2 - 16


def test_what_others_hold_is_not_counted_on() -> None:
    assert kv_gib(80, 40, 0.75) == 40 - 2 - 16
    assert kv_gib(80, 59, 0.75) == kv_gib(80, 79, 0.75)


def test_a_share_that_holds_too_little_is_refused_with_all_that_helps() -> None:
    with pytest.raises(TooLittleMemory) as caught:
        kv_gib(80, 79, 0.2)
    assert str(caught.value) == (
        "a share of 0.2 of the GPU's 80.0 GiB, without the 1.0 GiB of a process: 15.0 GiB are too little: 19.0 GiB are "
        "needed (weights 16.0 GiB, KV for 2048 tokens 1.0 GiB, work space 2.0 GiB): raise --gpu-memory-utilization, "
        "put fewer instances on this GPU, or lower --max-running and --budget-tokens, take --dtype bf16 or --kv-dtype "
        "fp8, or a smaller model"
    )
    with pytest.raises(TooLittleMemory, match=r"^free of the GPU's 80.0 GiB: 10.0 GiB are too little: .*nvidia-smi"):
        kv_gib(80, 10, 0.9)


def test_work_space_grows_with_the_largest_step(config: ModelConfig) -> None:
    least = work_space_bytes(config, 2, StepLimits(1, 1))
    assert work_space_bytes(config, 2, StepLimits(1, 101)) - least == 100 * config.vocab * LOGIT_BYTES
    tokens = work_space_bytes(config, 2, StepLimits(LONG_STEP_TOKENS + 100, 1)) - least
    assert tokens == 2 * 100 * (3 * 96 + (2 * 6 + 2 * 2) * 16)
    assert work_space_bytes(config, 2, StepLimits(1, 1), 5) == least + 5


@pytest.mark.parametrize(("positions", "splits"), [(600, 1), (900, 2), (2048, 4), (20_000, 39), (131_072, 64)])
def test_partial_results_have_all_splits_and_the_places_of_whole_tiles(
    config: ModelConfig, positions: int, splits: int
) -> None:
    """A tile of 16 lines has 5 queries of 3 heads: beside a prompt a decode row has places for as many."""
    assert split_counts(torch.arange(1, positions + 1)).max() == splits
    model = replace(config, heads=6, kv_heads=2, head_dim=16, vocab=1, max_positions=positions)
    few, many = (work_space_bytes(model, 2, StepLimits(1, rows)) for rows in (1, 65))
    assert many - few >= 64 * 5 * splits * 6 * 17 * 4


def test_recorded_decode_steps_may_take_more_than_prompts(config: ModelConfig) -> None:
    """256 rows of 64 splits, for 200 rows are padded to as many, and 33 splits are."""
    many = replace(
        config, heads=64, kv_heads=64, head_dim=16, hidden=16, intermediate=16, max_positions=17_000, vocab=1
    )
    least = replace(many, max_positions=1)
    step, token = StepLimits(1, 200), 3 * 16 + 4 * 64 * 16
    partial = 16 * 200 * 33 * 64 * 17 * 4
    recorded = 256 * (token + 3 * 16) * 2 + 256 * 64 * 64 * 17 * 4 - 2048 * (token + 3 * 16) * 2
    alone = 16 * 200 * 64 * 17 * 4
    assert work_space_bytes(many, 2, step) - work_space_bytes(least, 2, step) == partial - alone + recorded


def test_the_experts_of_a_token_count_where_they_are_wider(config: ModelConfig) -> None:
    mixed = replace(config, experts=ExpertConfig(count=8, active=2, width=100, renormalise=True))
    step = StepLimits(10, 1)
    assert work_space_bytes(mixed, 2, step) - work_space_bytes(config, 2, step) == (4096 + 2048) * 3 * (200 - 160) * 2


def test_memory_of_a_process_that_has_just_ended_is_waited_for() -> None:
    free = [3, 3, 8]
    waits: list[float] = []
    points: list[int] = []

    def read() -> tuple[int, int]:
        return (free.pop(0) if len(free) > 1 else free[0]), 10

    found = free_room(read, lambda total: total - 2, lambda: points.append(1), sleep=waits.append)
    assert found == (8, 10)
    assert len(waits) == len(points) == 2


def test_it_is_not_waited_for_ever() -> None:
    waits: list[float] = []
    assert free_room(lambda: (3, 10), lambda total: total, lambda: None, wait_s=1.0, sleep=waits.append) == (3, 10)
    assert sum(waits) == pytest.approx(1.0)


def test_the_host_driver_tells_what_is_left() -> None:
    driver = HostMemoryDriver(granule_bytes=1 << 16, most_granules=4)
    driver.create()
    assert driver.memory_left() == (3 << 16, 4 << 16)


def test_a_real_gpus_numbers(tmp_path: Path) -> None:
    """An 8B model in bf16 on 80 GB keeps most of the memory for KV: work space of the defaults is below 5 GiB."""
    small = load_config(make_checkpoint(tmp_path))
    heads = replace(small, heads=32, kv_heads=8, head_dim=128)
    config = replace(heads, hidden=4096, intermediate=14336, vocab=128256)
    work = work_space_bytes(config, 2, StepLimits(2048, 128), CUDA_LIBRARY_BYTES)
    assert 3 * GIB < work < 5 * GIB
