"""What an engine must know of the device that it computes on, and the devices by kind.

A device is where tensors lie, the memory that an arena's granules are made of, how transfers reach KV there, and what
computes. The rest of the engine is the same for all.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.layer_segments import BeginSegments
from dunlin.engine.decoder.memory.arena import FILE_MEMORY
from dunlin.engine.decoder.memory.granule_memory import GranuleSource
from dunlin.engine.decoder.native.decode_choice import choose_decode_steps
from dunlin.engine.decoder.numerics import Numerics, choose_fast_numerics
from dunlin.engine.device.names import CPU
from dunlin.engine.device.pacing import HOST_PACER, Pacer, choose_host_pacer
from dunlin.engine.device.room import DeviceRoom
from dunlin.engine.device.staging import Staging
from dunlin.engine.device.warm_steps import WarmStep, host_warm_steps
from dunlin.engine.transfer.slab import HOST_KV, KvAccess


class DeviceUnavailable(ValueError):
    """The device cannot be used here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """`choose_numerics()` gives the fast numerics and what to tell of them. `work_clock` tells the seconds that work
    took the host's thread. `pacer` waits for what is launched. `begin_segments(decoder,
    beat)` computes several layers of its small steps in one piece, of decode steps alone unless
    `rows_may_leave_segments`; with `beat`, which is called now and then, what is usual is prepared at once. None:
    nothing is gained by that. `choose_prompts(decoder)` measures what attends to prompts of a model that is loaded, and
    gives the decoder's numerics with it, and what to tell of it; None: there is no choice. `warm_steps` are computed
    once at the start.
    `room` tells how much memory a device of its own has; None: it is the host's. `reads_fp8`: KV may be fp8.
    `staging` is what `kv` copies through; None: KV is the host's.
    """

    name: str
    torch_device: torch.device
    choose_numerics: Callable[[], tuple[Numerics, str]]
    memory: GranuleSource = FILE_MEMORY
    kv: KvAccess = HOST_KV
    pacer: Pacer = HOST_PACER
    work_clock: Callable[[], float] = time.thread_time
    begin_segments: Callable[[Decoder, Callable[[], object] | None], BeginSegments] | None = None
    choose_prompts: Callable[[Decoder], tuple[Numerics, str]] | None = None
    rows_may_leave_segments: bool = False
    warm_steps: tuple[WarmStep, ...] = field(default_factory=host_warm_steps)
    room: DeviceRoom | None = None
    reads_fp8: bool = True
    staging: Staging | None = None

    @property
    def is_host(self) -> bool:
        """Whether weights and KV lie in the memory file: peers, a standby and the next engine can reach them."""
        return self.memory.outlives_process


def cpu_device() -> EngineDevice:
    """Host memory and this processor."""
    return EngineDevice(
        CPU, torch.device("cpu"), choose_fast_numerics, pacer=choose_host_pacer(), begin_segments=choose_decode_steps
    )
