"""Devices that differ from a measured one in memory or NVLink alone: its coefficients, slowed where those bound it.

What computes takes as long; what reads memory takes longer by the ratio of the bandwidths, and so does an all-reduce
by that of the NVLinks. Each kernel's shortest time stays. Estimated, not measured; each variant says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log2
from typing import TYPE_CHECKING

from dunlin.cost.surface import Surface

if TYPE_CHECKING:
    from dunlin.cost.device import Device


@dataclass(frozen=True, slots=True)
class DeviceVariant:
    """Like the device `like`, with so much memory of such bandwidth, and a share of its NVLink's bandwidth."""

    like: str
    title: str
    memory_bytes: int
    bytes_per_s: float
    nvlink_share: float = 1.0


VARIANTS = {
    "a100-40g": DeviceVariant("a100", "NVIDIA A100 40 GB SXM", 40_000_000_000, 1.555e12),
    "a800": DeviceVariant("a100", "NVIDIA A800 80 GB SXM", 80_000_000_000, 2.039e12, nvlink_share=400 / 600),
    "h100": DeviceVariant("h200", "NVIDIA H100 80 GB SXM", 80_000_000_000, 3.35e12),
}
"""By name; figures of the data sheets."""


def variant_of(device: "Device", name: str, variant: DeviceVariant) -> "Device":
    """The variant's coefficients, out of those of the device that it is like."""
    slower = device.bytes_per_s / variant.bytes_per_s

    def product_factor(point: Sequence[float]) -> float:
        """How much longer a matrix product takes: all of the ratio if it waits for memory, nothing if it computes."""
        m, n, k = point
        reads_s = 2 * (m * k + k * n + m * n) / variant.bytes_per_s
        return min(max(1.0, reads_s * device.flops / (2 * m * n * k)), slower)

    nvlink = replace(device.nvlink, bytes_per_s=device.nvlink.bytes_per_s * variant.nvlink_share)
    said = f"as {device.title}, slowed by the ratios of memory and NVLink bandwidth; not measured"
    return replace(
        device,
        name=name,
        title=variant.title,
        memory_bytes=variant.memory_bytes,
        bytes_per_s=variant.bytes_per_s,
        kv_bytes_per_s=device.kv_bytes_per_s / slower,
        gemm=_slowed(device.gemm, product_factor),
        decode=_slowed(device.decode, lambda point: slower),
        streams={part: _slowed(surface, lambda point: slower) for part, surface in device.streams.items()},
        all_reduce={
            gpus: _slowed(surface, lambda point: 1 / variant.nvlink_share)
            for gpus, surface in device.all_reduce.items()
        },
        nvlink=nvlink,
        estimated={**device.estimated, "all of it": said},
    )


def _slowed(surface: Surface, factor: Callable[[Sequence[float]], float]) -> Surface:
    """Each value but the shortest's part of it, times the factor at its point."""
    least = 2.0 ** min(surface.values)
    points = product(*([2.0**knot for knot in axis] for axis in surface.knots))
    values = [
        log2(least + (2.0**value - least) * factor(point)) for point, value in zip(points, surface.values, strict=True)
    ]
    return replace(surface, values=tuple(values))
