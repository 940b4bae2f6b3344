"""The names of devices, as `--device` and `instance.engine.device` take them. Loads no torch."""

import re

from dunlin.runtime.cuda_driver import gpu_names
from dunlin.runtime.procfs import processor_name

CPU, CUDA, INTERPRET = "cpu", "cuda", "interpret"
_KNOWN = re.compile(r"cpu|interpret|cuda(:\d{1,3})?")
DEVICES_TEXT = "cpu, cuda, cuda:N (its number, from 0), or interpret (a GPU's code on the CPU, for tests: very slow)"


class DeviceNameError(ValueError):
    """No name of a device."""


def check_device_name(name: str) -> str:
    """The very name. :raises DeviceNameError: it names no device."""
    if not _KNOWN.fullmatch(name):
        raise DeviceNameError(f"device {name!r}: choose one of {DEVICES_TEXT}")
    return name


def device_kind(name: str) -> str:
    """CPU, CUDA or INTERPRET."""
    return name.partition(":")[0]


def device_number(name: str) -> int:
    """Which GPU of this machine a name means; `cuda` alone is the first."""
    return int(name.partition(":")[2] or 0)


def granule_bytes(name: str) -> int:
    """Of a granule of the device's memory: what CUDA's driver says of every GPU so far, and of memory files."""
    return 2 << 20 if device_kind(name) == CUDA else 1 << 16


def device_of(name: str, instance: int, devices: int, ranks: int = 1) -> str:
    """The device of instance number `instance`, of the first of its `ranks`, where `devices` GPUs are: `cuda` without a
    number is each instance's own, in turn.
    """
    return f"{CUDA}:{instance % (devices // ranks) * ranks}" if name == CUDA and devices >= ranks else name


def rank_device(name: str, rank: int) -> str:
    """The device of another rank than the first, which has `name`: the ranks of an engine have GPUs that follow each
    other.
    """
    if device_kind(name) != CUDA:
        return name
    return f"{CUDA}:{device_number(name) + rank}"


def lacking_gpus(name: str, ranks: int, devices: int) -> str:
    """Why an engine of `ranks`, the first of which has the device `name`, finds too few of `devices` GPUs; empty: it
    does not.
    """
    first = device_number(name)
    if device_kind(name) != CUDA or first + ranks <= devices or ranks == 1:
        return ""
    return f"{ranks} ranks take a GPU each, from {CUDA}:{first} on: {devices} are here, numbered from 0"


def counted_threads(name: str, threads: int) -> int:
    """The compute threads on which step times depend: on a GPU they do not."""
    return 1 if device_kind(name) == CUDA else threads


def computed_by(name: str) -> str:
    """The processor or GPU that a device's name means here: step times are true of no other."""
    if device_kind(name) == CPU:
        return processor_name()
    if device_kind(name) == INTERPRET:
        return f"{INTERPRET} on {processor_name()}"
    number, gpus = device_number(name), gpu_names()
    return gpus[number] if number < len(gpus) else name
