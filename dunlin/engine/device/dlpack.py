"""A torch tensor over memory at an address, on any device, without a copy and without a look at the memory.

By DLPack: it names the device, where `__cuda_array_interface__` would have torch ask the driver what lies at the
address. Nothing is mapped at most of a reserved range, so the driver would know nothing of it.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

_CPU, _CUDA = 1, 2
_UNSIGNED = 1


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor of DLPack before 1.0, which torch reads as "dltensor"; then its shape."""

    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("length", ctypes.c_int64),
    )


_libc: Any = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_new_capsule: Any = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def bytes_at(address: int, size_bytes: int, device: torch.device) -> Tensor:
    """The `size_bytes` from `address` on as `[size_bytes]` uint8. The memory is not owned: it must stay reserved as
    long as the tensor is used, and only what is mapped of it may be touched.
    """
    # torch ends the tensor by calling the deleter with this block: `free` is one.
    block = _libc.malloc(ctypes.sizeof(_ManagedTensor))
    if not block:
        raise MemoryError("no memory for a tensor's description")
    managed = _ManagedTensor.from_address(block)
    managed.length = size_bytes
    managed.context = None
    managed.deleter = ctypes.cast(_libc.free, ctypes.c_void_p).value
    managed.tensor.data = address
    managed.tensor.device = _Device(*_dlpack_device(device))
    managed.tensor.dimensions = 1
    managed.tensor.dtype = _DataType(_UNSIGNED, 8, 1)
    shape = ctypes.c_void_p(block + _ManagedTensor.length.offset)
    managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.tensor.strides = None
    managed.tensor.byte_offset = 0
    made: Tensor = from_dlpack(_new_capsule(block, b"dltensor", None))
    return made


def _dlpack_device(device: torch.device) -> tuple[int, int]:
    if device.type == "cuda":
        return _CUDA, device.index or 0
    return _CPU, 0
