"""What the device does at most, measured: a large copy, and a large product of random bf16 matrices."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.gpu.plan import GpuPlan


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """`bytes_per_s` read and written by a copy within the device; `flops` of a product in bf16, a second."""

    bytes_per_s: float
    flops: float


def measure_limits(plan: GpuPlan, device: torch.device) -> DeviceLimits:
    """Medians of ten, after three that do not count."""
    count = plan.copy_mib << 19
    copy_s, product_s = _copy_seconds(count, device), _product_seconds(plan.matrix, device)
    return DeviceLimits(4.0 * count / copy_s, 2.0 * plan.matrix**3 / product_s)


def _copy_seconds(count: int, device: torch.device) -> float:
    source = torch.randn(count, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return device_seconds(lambda: target.copy_(source), device)


def _product_seconds(size: int, device: torch.device) -> float:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return device_seconds(lambda: left @ right, device)


def device_seconds(work: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """The median time of a call on the device."""
    found = []
    for turn in range(repeats + 3):
        wait(device)
        began_s = time.perf_counter()
        work()
        wait(device)
        if turn >= 3:
            found.append(time.perf_counter() - began_s)
    return median(found)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
