"""CUDA's calls as they are made: their arguments and order, and what a refusal becomes. A library plays the driver's
bindings, for there is no GPU.
"""

import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dunlin.engine.device.memory_driver import CudaMemoryDriver

GRANULE = 2 << 20


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


class Bindings:
    """`cuda.bindings.driver` as far as it is used: every function answers (error, result)."""

    CUmemLocation = CUmemAllocationProp = CUmemAccessDesc = SimpleNamespace
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers = {
            "cuMemGetAllocationGranularity": (Result.CUDA_SUCCESS, GRANULE),
            "cuMemAddressReserve": (Result.CUDA_SUCCESS, 1 << 40),
            "cuMemCreate": (Result.CUDA_SUCCESS, 77),
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuMem"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self.answers.get(name, (Result.CUDA_SUCCESS,))

        return call


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    made = Bindings()
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=SimpleNamespace(driver=made)))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=made))
    return made


def test_memory_is_made_on_the_device_and_mapped_with_access(bindings: Bindings) -> None:
    driver = CudaMemoryDriver(torch.device("cuda", 3))
    assert driver.granule_bytes == GRANULE
    bindings.calls.clear()
    base = driver.reserve(8 * GRANULE)
    handle = driver.create()
    driver.map(base + GRANULE, handle)
    driver.unmap(base + GRANULE)
    driver.release(handle)
    driver.free(base, 8 * GRANULE)
    reserve, create, mapped, access, *ends = bindings.calls
    assert reserve == ("cuMemAddressReserve", 8 * GRANULE, GRANULE, 0, 0)
    properties = create[2]
    assert (create[0], create[1], properties.location.id, properties.type) == ("cuMemCreate", GRANULE, 3, 1)
    assert mapped == ("cuMemMap", base + GRANULE, GRANULE, 0, handle, 0)
    assert access[:3] == ("cuMemSetAccess", base + GRANULE, GRANULE)
    assert (access[3][0].location.id, access[3][0].flags, access[4]) == (3, 3, 1)
    assert ends == [
        ("cuMemUnmap", base + GRANULE, GRANULE),
        ("cuMemRelease", 77),
        ("cuMemAddressFree", base, 8 * GRANULE),
    ]


def test_what_the_driver_refuses_is_a_memory_error_with_its_name(bindings: Bindings) -> None:
    driver = CudaMemoryDriver(torch.device("cuda", 0))
    bindings.answers["cuMemCreate"] = (Result.CUDA_ERROR_OUT_OF_MEMORY, None)  # type: ignore[assignment]
    with pytest.raises(MemoryError, match=r"cuMemCreate on cuda:0: CUDA_ERROR_OUT_OF_MEMORY"):
        driver.create()
