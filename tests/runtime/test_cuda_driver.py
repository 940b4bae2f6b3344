"""The GPUs by what the driver's library says. A library plays the driver."""

import ctypes
from typing import Any

import pytest

from dunlin.runtime.cuda_driver import gpu_memory_bytes, gpu_names


class Driver:
    def __init__(self, names: list[str], refuses: str = "") -> None:
        self.names = names
        self.refuses = refuses

    def cuInit(self, flags: int) -> int:
        return int(self.refuses == "cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return int(self.refuses == "cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return int(number >= len(self.names))

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        size._obj.value = (device.value + 1) << 30
        return int(self.refuses == "cuDeviceTotalMem_v2")

    def cuDeviceGetName(self, text: Any, size: int, device: Any) -> int:
        text.value = self.names[device.value].encode()
        return int(self.refuses == "cuDeviceGetName")


def names(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> tuple[str, ...]:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return gpu_names()


def test_the_gpus_are_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(monkeypatch, Driver(["NVIDIA H200", "NVIDIA A10"])) == ("NVIDIA H200", "NVIDIA A10")


@pytest.mark.parametrize(
    ("refuses", "found"), [("cuInit", ()), ("cuDeviceGetCount", ()), ("cuDeviceGetName", ("GPU 0",))]
)
def test_a_driver_that_refuses_is_none(monkeypatch: pytest.MonkeyPatch, refuses: str, found: tuple[str, ...]) -> None:
    assert names(monkeypatch, Driver(["NVIDIA H200"], refuses)) == found


def test_without_the_library_there_is_no_gpu() -> None:
    assert gpu_names("libdunlin-no-such-driver.so.1") == ()


def test_a_gpus_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(["NVIDIA H200", "NVIDIA A10"]))
    assert [gpu_memory_bytes(number) for number in (0, 1, 2)] == [1 << 30, 2 << 30, 0]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(["NVIDIA H200"], "cuDeviceTotalMem_v2"))
    assert gpu_memory_bytes(0) == 0


def test_without_the_library_there_is_no_memory() -> None:
    assert gpu_memory_bytes(0, "libdunlin-no-such-driver.so.1") == 0
