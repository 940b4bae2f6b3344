"""What NVIDIA's driver says of the GPUs of this machine. Loads no torch, and makes no context on a GPU."""

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"
_NAME_BYTES = 256


def gpu_names(library: str = LIBRARY) -> tuple[str, ...]:
    """The names of the GPUs that this process may use, by number; none where there is no driver."""
    try:
        driver: Any = ctypes.CDLL(library)
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_name(driver, number) for number in range(count.value))


def gpu_memory_bytes(number: int, library: str = LIBRARY) -> int:
    """The whole memory of a GPU; 0 where there is no such GPU."""
    try:
        driver: Any = ctypes.CDLL(library)
    except OSError:
        return 0
    device, size = ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
        return 0
    return 0 if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) else size.value


def _name(driver: Any, number: int) -> str:
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    if driver.cuDeviceGet(ctypes.byref(device), number) or driver.cuDeviceGetName(text, _NAME_BYTES, device):
        return f"GPU {number}"
    return text.value.decode(errors="replace")
