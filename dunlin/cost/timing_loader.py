"""`load_timing`: the timing of a simulated engine, from a shipped device or a profile."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from dunlin.cost.composer import StepComposer
from dunlin.cost.device import DeviceError, find_device, with_links
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import EngineOverhead, StepWithOverhead
from dunlin.cost.shapes import ModelShape, find_shape


def load_timing(
    device: str,
    shape: str,
    tp: int = 1,
    overhead: EngineOverhead | None = None,
    links: Mapping[str, float] | None = None,
) -> EngineTiming:
    """The timing of model `shape` (a name, a directory or a `config.json`) on `device` over `tp` GPUs.

    `device` is the name of a device that ships with the package, or the path of a store that `dunlin profile` wrote.
    `overhead` is what the engine's host adds to each step (nothing, if not said: a device's coefficients are of its
    kernels alone; a profile's hold the host's part already). `links`: other bandwidths (`device.LINKS`), of a device
    alone. Raises DeviceError, ShapeError, or StoreError with what is known instead.
    """
    timing = _timing(device, shape, tp, links or {})
    return timing if overhead is None else replace(timing, step=StepWithOverhead(timing.step, overhead))


def _timing(device: str, shape: str, tp: int, links: Mapping[str, float]) -> EngineTiming:
    if Path(device).is_file():
        if links:
            raise DeviceError(f"{device} is a profile: its copies were measured, and its links cannot be others")
        from dunlin.cost.store import ProfileStore  # sqlite3 only where a store is meant

        with ProfileStore(Path(device)) as store:
            return store.timing(shape)
    return _composed(device, find_shape(shape), tp, tuple(sorted(links.items())))


@lru_cache(maxsize=32)
def _composed(device: str, shape: ModelShape, tp: int, links: tuple[tuple[str, float], ...]) -> EngineTiming:
    """Kept: a study runs many cases of few engines, and a tenth of a second goes into the tables of each."""
    return StepComposer(with_links(find_device(device), dict(links)), shape, tp).timing()
