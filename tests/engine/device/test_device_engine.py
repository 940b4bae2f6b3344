"""Everything above the device is the same for all: a model in a device's memory, its layers changed and its steps run.

By the driver on host memory; torch computes, so that steps are quick (`test_interpreted_engine.py` has the kernels).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.device.device_arena import DeviceMemory
from dunlin.engine.device.host_driver import HostMemoryDriver
from dunlin.engine.device.kv_access import DeviceKvAccess
from dunlin.engine.device.staging import HostStaging
from dunlin.engine.execution.remap import LayerRemapper, RemapError
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.messages.engine import Remap
from dunlin.messages.types import Region, RemapPhase, i32
from tests.engine.build import Sequences, load, make_checkpoint

GRANULE = 1 << 16
DROP = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)
RESTORE = (RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT)
TOKENS = [5, 17, 300, 44, 9]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def open_model(directory: Path, driver: HostMemoryDriver, fd: int) -> LoadedModel:
    return load_model(directory, "float32", 3 << 20, numerics.fast_numerics("torch"), fd, source=DeviceMemory(driver))


@pytest.fixture
def driver() -> HostMemoryDriver:
    return HostMemoryDriver(GRANULE)


@pytest.fixture
def model(directory: Path, driver: HostMemoryDriver) -> Iterator[LoadedModel]:
    fd = os.memfd_create("ledger")
    loaded = open_model(directory, driver, fd)
    yield loaded
    loaded.arena.close()
    assert driver.created == 0
    os.close(fd)


def logits(loaded: LoadedModel) -> torch.Tensor:
    return Sequences(loaded.decoder, {1: list(range(20))}).compute([(1, TOKENS, 0)])


def change(
    loaded: LoadedModel, remapper: LayerRemapper, layout: int, phases: tuple[RemapPhase, ...], layers: list[int]
) -> None:
    for phase in phases:
        remapper.begin(Remap(layout, phase, i32(layers)))
        while remapper.busy:
            remapper.advance()
    loaded.arena.check_integrity()


def test_it_computes_what_it_does_in_the_memory_file(directory: Path, model: LoadedModel) -> None:
    there = load(directory, attention="torch", kv_bytes=3 << 20)
    assert (model.slots, model.weights_digest) == (there.slots, there.weights_digest)
    assert torch.allclose(logits(model), logits(there), atol=1e-5)


def test_the_file_holds_the_ledger_alone_and_the_next_engine_begins_anew(
    directory: Path, model: LoadedModel, driver: HostMemoryDriver
) -> None:
    assert os.fstat(model.arena.fd).st_size < 1 << 20
    before = model.arena.identity
    following = open_model(directory, HostMemoryDriver(GRANULE), model.arena.fd)
    assert following.arena.identity != before, "nothing counts on KV that is gone"
    assert torch.equal(logits(following), logits(model))
    following.arena.close()


def test_layers_that_are_dropped_give_slots_and_come_back(directory: Path, model: LoadedModel) -> None:
    remapper = LayerRemapper(model.arena, model.weights, CheckpointSource(directory))
    whole, slots = logits(model), model.arena.slots
    kv = model.decoder.kv[0]
    marked = kv[:slots].normal_().clone()
    change(model, remapper, 1, DROP, [0, 1])
    gained = model.arena.slots
    assert gained > slots
    assert torch.equal(kv[:slots], marked), "KV stays at its address"
    kv[slots:gained] = 1.0
    change(model, remapper, 2, RESTORE, [0, 1, 2])
    assert model.arena.slots == slots
    assert torch.equal(kv[:slots], marked)
    assert torch.equal(logits(model), whole)


def test_a_device_without_memory_refuses_and_goes_on(directory: Path, driver: HostMemoryDriver) -> None:
    fd = os.memfd_create("ledger")
    loaded = open_model(directory, driver, fd)
    driver.create = lambda: (_ for _ in ()).throw(MemoryError("none left"))  # type: ignore[method-assign]
    remapper = LayerRemapper(loaded.arena, loaded.weights, CheckpointSource(directory))
    change(loaded, remapper, 1, DROP, [0, 2])  # what is mapped anew was there
    with pytest.raises(RemapError, match="neither fewer nor more"):
        remapper.begin(Remap(2, RemapPhase.PREPARE, i32([0, 1])))
    loaded.arena.close()
    os.close(fd)


def test_its_slab_gives_bytes_to_the_host_tier(model: LoadedModel) -> None:
    slab = slab_of(model.arena, model.decoder.kv, DeviceKvAccess(HostStaging()))
    (piece,) = slab.pieces(Region(1, 2, 0, 2), [3], [2])
    assert piece.dtype is torch.uint8
    wanted = model.decoder.kv[1][3:5].contiguous().view(torch.uint8).numpy().reshape(-1)
    assert np.array_equal(piece.numpy(), wanted)
