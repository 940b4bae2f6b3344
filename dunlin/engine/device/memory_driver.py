"""The driver's calls for memory whose mapping changes under fixed addresses: CUDA's, by `cuda.bindings`.

A granule is physical memory without an address; a reservation is addresses without memory.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from dunlin.engine.device.dlpack import bytes_at


class MemoryDriver(Protocol):
    """Granules of `granule_bytes`, and addresses that they are mapped at. Addresses and sizes are whole granules."""

    granule_bytes: int

    def reserve(self, size_bytes: int) -> int:
        """Reserve addresses; returns the first. :raises MemoryError: there are not so many."""
        ...

    def free(self, address: int, size_bytes: int) -> None:
        """Give a reservation back, in which nothing is mapped."""
        ...

    def create(self) -> int:
        """A new granule, by its handle. :raises MemoryError: the device has no memory left."""
        ...

    def release(self, handle: int) -> None:
        """Give a granule back that is mapped nowhere."""
        ...

    def map(self, address: int, handle: int) -> None:
        """Map a granule, readable and writable; it may be mapped elsewhere too."""
        ...

    def unmap(self, address: int) -> None:
        """Unmap the granule at an address. No kernel that uses it may be running: see `wait`."""
        ...

    def wait(self) -> None:
        """Until everything that was launched on the device is done."""
        ...

    def view(self, address: int, size_bytes: int) -> Tensor:
        """A reservation as `[size_bytes]` uint8."""
        ...


class CudaMemoryDriver:
    """See `MemoryDriver`; for one CUDA device. Torch has made its context the current one."""

    def __init__(self, device: torch.device) -> None:
        """:raises ModuleNotFoundError: there is no `cuda.bindings`."""
        from cuda.bindings import driver

        self._cuda: Any = driver
        self._device = device
        number = device.index or 0
        location = driver.CUmemLocation()
        location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = number
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = location
        self._access = driver.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granule_bytes = int(self._call("cuMemGetAllocationGranularity", self._properties, flag))

    def reserve(self, size_bytes: int) -> int:
        return int(self._call("cuMemAddressReserve", size_bytes, self.granule_bytes, 0, 0))

    def free(self, address: int, size_bytes: int) -> None:
        self._call("cuMemAddressFree", address, size_bytes)

    def create(self) -> int:
        return int(self._call("cuMemCreate", self.granule_bytes, self._properties, 0))

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def map(self, address: int, handle: int) -> None:
        self._call("cuMemMap", address, self.granule_bytes, 0, handle, 0)
        self._call("cuMemSetAccess", address, self.granule_bytes, [self._access], 1)

    def unmap(self, address: int) -> None:
        self._call("cuMemUnmap", address, self.granule_bytes)

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)

    def view(self, address: int, size_bytes: int) -> Tensor:
        return bytes_at(address, size_bytes, self._device)

    def _call(self, name: str, *arguments: Any) -> Any:
        """:raises MemoryError: the driver refuses; the text has its name for the reason."""
        error, *results = getattr(self._cuda, name)(*arguments)
        if int(error):
            raise MemoryError(f"{name} on {self._device}: {getattr(error, 'name', error)}")
        return results[0] if results else None
