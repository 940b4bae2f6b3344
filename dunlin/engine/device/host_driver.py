"""The device driver's memory calls on host memory, so that what is written for a GPU runs without one."""

import ctypes
import mmap
import os
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.device.dlpack import bytes_at

_MAP_FIXED, _MAP_NORESERVE, _PROT_NONE = 0x10, 0x4000, 0
_FAILED = ctypes.c_void_p(-1).value
_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class HostMemoryDriver:
    """See `MemoryDriver`: granules are stretches of a memory file, and what is not mapped cannot be touched.

    `most_granules`: a device's memory is bounded too.
    """

    def __init__(self, granule_bytes: int = 1 << 16, most_granules: int = 1 << 16) -> None:
        self.granule_bytes = granule_bytes
        self._most = most_granules
        self._fd = os.memfd_create("dunlin-interpreted-device", os.MFD_CLOEXEC)
        self._free: list[int] = []
        self._made = 0

    @property
    def created(self) -> int:
        """Granules that were created and not released."""
        return self._made - len(self._free)

    def memory_left(self) -> tuple[int, int]:
        """Memory that is free, and in all, bytes."""
        return (self._most - self.created) * self.granule_bytes, self._most * self.granule_bytes

    def reserve(self, size_bytes: int) -> int:
        return _map(None, size_bytes, _PROT_NONE, _hole(), -1, 0)

    def free(self, address: int, size_bytes: int) -> None:
        _libc.munmap(address, size_bytes)

    def create(self) -> int:
        if self._free:
            return self._free.pop()
        if self._made == self._most:
            raise MemoryError(f"the device has {self._most} granules of {self.granule_bytes} bytes")
        self._made += 1
        os.ftruncate(self._fd, self._made * self.granule_bytes)
        return self._made

    def release(self, handle: int) -> None:
        self._free.append(handle)

    def map(self, address: int, handle: int) -> None:
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
        _map(address, self.granule_bytes, protection, flags, self._fd, (handle - 1) * self.granule_bytes)

    def unmap(self, address: int) -> None:
        _map(address, self.granule_bytes, _PROT_NONE, _hole() | _MAP_FIXED, -1, 0)

    def wait(self) -> None:
        """Nothing runs beside the caller."""

    def view(self, address: int, size_bytes: int) -> Tensor:
        return bytes_at(address, size_bytes, torch.device("cpu"))


def _hole() -> int:
    return mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address, size, protection, flags, fd, offset)
    if result == _FAILED:
        raise MemoryError(f"mmap of {size} bytes: {os.strerror(ctypes.get_errno())}")
    return int(result)
