"""Copies between host and device that do not make the host wait for what the device has to do before."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 16
"""Items from whose multiples on columns begin."""


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Host values on `device`, after what was launched before; the very tensor where that is the host."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def all_to_device(columns: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """`to_device` of host tensors of one axis and one dtype, in one copy; each begins at a place that kernels like."""
    if device.type != "cuda":
        return [to_device(each, device) for each in columns]
    rooms = [-(-len(each) // ALIGNED) * ALIGNED for each in columns]
    given = columns[0].new_zeros(sum(rooms))
    for each, into in zip(columns, torch.split(given, rooms), strict=True):
        into[: len(each)] = each
    there = torch.split(to_device(given, device), rooms)
    return [into[: len(each)] for each, into in zip(columns, there, strict=True)]


def rows_at(values: Tensor, places: Sequence[int]) -> Tensor:
    """Some rows of a tensor, the very tensor where they are all of it. To index by a list would wait for the device."""
    if are_all(places, len(values)):
        return values
    return values.index_select(0, to_device(torch.tensor(places), values.device))


def are_all(places: Sequence[int], count: int) -> bool:
    """Whether they are 0 to `count`, in order."""
    return len(places) == count and list(places) == list(range(count))


def write(into: Tensor, values: Tensor) -> None:
    """Host values into a tensor of a device, after what was launched before."""
    into.copy_(values.pin_memory() if into.device.type == "cuda" else values, non_blocking=True)


class HostCopy:
    """What `source` is once all that was launched before is done; what is launched afterwards is not waited for."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = source
        if source.device.type == "cuda":
            self._copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._copy.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> Tensor:
        """Wait for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
