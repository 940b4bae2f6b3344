"""The device by its name."""

from dunlin.engine.device.base import EngineDevice, cpu_device
from dunlin.engine.device.cuda import cuda_device, interpreted_device
from dunlin.engine.device.names import CPU, CUDA, INTERPRET, check_device_name, device_kind

DEVICES = {CPU: lambda name: cpu_device(), CUDA: cuda_device, INTERPRET: interpreted_device}


def open_device(name: str) -> EngineDevice:
    """The device that `name` names.

    :raises DeviceNameError: no device has such a name.
    :raises DeviceUnavailable: it is not there, or a package for it is missing.
    """
    return DEVICES[device_kind(check_device_name(name))](name)
