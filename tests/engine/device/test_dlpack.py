"""A tensor over memory at an address: it reads and writes there, owns nothing, and looks at nothing when it is made."""

import ctypes
import gc
import mmap

import torch

from dunlin.engine.device.dlpack import _dlpack_device, bytes_at

CPU = torch.device("cpu")


def test_it_reads_and_writes_the_memory_at_the_address() -> None:
    memory = (ctypes.c_uint8 * 64)(*range(64))
    view = bytes_at(ctypes.addressof(memory), 64, CPU)
    assert (view.dtype, view.shape) == (torch.uint8, (64,))
    assert view.tolist() == list(range(64))
    view.view(torch.int32)[1] = -1
    assert list(memory[3:9]) == [3, 255, 255, 255, 255, 8]


def test_addresses_without_memory_are_not_touched() -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 0, flags, -1, ctypes.c_long(0))
    view = bytes_at(base, mmap.PAGESIZE, CPU)
    assert view.data_ptr() == base
    assert len(view) == mmap.PAGESIZE


def test_the_description_goes_with_the_last_view_and_the_memory_stays() -> None:
    memory = (ctypes.c_uint8 * 1024)(7)
    for _ in range(10_000):  # a second free would end the process
        part = bytes_at(ctypes.addressof(memory), 1024, CPU)[5:9]
        del part
    gc.collect()
    assert memory[0] == 7


def test_a_gpus_number_goes_along() -> None:
    assert _dlpack_device(torch.device("cuda", 3)) == (2, 3)
    assert _dlpack_device(CPU) == (1, 0)
