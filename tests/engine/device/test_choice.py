"""Devices by name; without a GPU, a clear reason."""

import pytest
import torch

from dunlin.engine.decoder.memory.arena import FILE_MEMORY
from dunlin.engine.device import cuda
from dunlin.engine.device.base import DeviceUnavailable
from dunlin.engine.device.choice import open_device
from dunlin.engine.device.names import DeviceNameError


def test_the_cpu_computes_in_the_memory_file() -> None:
    device = open_device("cpu")
    assert (device.torch_device, device.is_host, device.memory) == (torch.device("cpu"), True, FILE_MEMORY)
    assert device == open_device("cpu"), "what is cached by device is found again"


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(DeviceNameError, match="tpu"):
        open_device("tpu")


def test_a_build_of_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(
        DeviceUnavailable, match=r"cuda:0: torch .* is built without CUDA; pip install .* or --device cpu"
    ):
        open_device("cuda")


def test_no_gpu_and_a_number_too_high_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match=r"cuda:2: torch finds no CUDA driver or no GPU; see nvidia-smi"):
        open_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceUnavailable, match=r"cuda:2: there are 2 GPUs, numbered from 0"):
        open_device("cuda:2")


def test_what_is_interpreted_must_be_so_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(DeviceUnavailable, match="set TRITON_INTERPRET=1 before Python starts"):
        open_device("interpret")


def test_a_graph_that_is_no_graph_is_the_function() -> None:
    done = []
    replay = cuda.call_again(lambda: done.append(1), is_known=False)
    assert done == []
    replay()
    replay()
    assert done == [1, 1]
