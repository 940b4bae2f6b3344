"""How many bytes of KV an engine has: as told, or what its share of the device leaves."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dunlin.engine.device.base import EngineDevice, cpu_device
from dunlin.engine.device.room import DeviceRoom
from dunlin.engine.process.memory import memory_text, with_kv_bytes
from dunlin.engine.process.options import EngineOptions
from dunlin.model.config import load_config
from dunlin.model.memory_plan import TooLittleMemory, model_sizes
from tests.engine.build import load, make_checkpoint, nothing

MIB = 1 << 20
OPTIONS = EngineOptions(
    Path("/m"), "a", 7, os.getpid(), -1, -1, -1, kv_bytes=0, gpu_share=0.5, step_tokens=16, step_rows=2
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def device(free_mib: int, total_mib: int) -> EngineDevice:
    return replace(cpu_device(), room=DeviceRoom(lambda: (free_mib * MIB, total_mib * MIB), MIB, 2 * MIB))


def test_kv_is_what_the_share_leaves(model: Path) -> None:
    found = with_kv_bytes(replace(OPTIONS, model=model), device(500, 512), nothing).kv_bytes
    weights = model_sizes(load_config(model), 4, 1 << 16).weights_bytes
    work = 255 * MIB - weights - found
    assert 70 * MIB < work < 90 * MIB
    assert with_kv_bytes(replace(OPTIONS, model=model, gpu_share=0.25), device(500, 512), nothing).kv_bytes == (
        found - 128 * MIB
    )


def test_what_was_told_is_taken_where_it_fits(model: Path) -> None:
    told = replace(OPTIONS, model=model, kv_bytes=8 * MIB)
    assert with_kv_bytes(told, device(100, 128), nothing) == told
    assert with_kv_bytes(told, cpu_device(), nothing) == told
    with pytest.raises(TooLittleMemory, match=r"^9.0 MiB of the device's 128.0 MiB are free, .* are needed \(weights"):
        with_kv_bytes(told, device(9, 128), nothing, wait_s=0.0)


def test_ranks_have_a_device_each_and_the_least_that_one_of_them_has(model: Path) -> None:
    """Each counts its own part of the weights."""
    others, heard = iter((30 * MIB, 500 * MIB)), []

    def least(own: int) -> int:
        heard.append(own)
        return min(own, next(others))

    options = replace(OPTIONS, model=model, ranks=2, rank=1)
    found = [with_kv_bytes(options, device(500, 512), nothing, least).kv_bytes for _ in range(2)]
    assert found == [60 * MIB, 2 * heard[1]]
    alone = with_kv_bytes(replace(OPTIONS, model=model), device(500, 512), nothing).kv_bytes
    whole = model_sizes(load_config(model), 4, 1 << 16).weights_bytes
    assert heard[1] > alone + whole // 4, "half of the layers' weights, and narrower work"
    told = replace(options, kv_bytes=16 * MIB)
    assert with_kv_bytes(told, device(9, 128), nothing, wait_s=0.0) == told, "8 MiB here"
    with pytest.raises(TooLittleMemory):
        with_kv_bytes(told, device(8, 128), nothing, wait_s=0.0)


def test_what_was_loaded_is_said(model: Path) -> None:
    loaded = load(model, kv_bytes=3 * MIB)
    told = memory_text(loaded, cpu_device())
    assert told == "KV for 4,096 tokens (3.0 MiB), weights 1.4 MiB"
    assert "(3.0 MiB of the device's 128.0 MiB)" in memory_text(loaded, device(9, 128))
    loaded.arena.close()
