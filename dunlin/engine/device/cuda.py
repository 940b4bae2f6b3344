"""An NVIDIA GPU as the engine's device, and the same code on the CPU by Triton's interpreter."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dunlin.engine.attention.flashinfer_prompts import DEVICE_BYTES, installed_flashinfer
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.layer_segments import BeginSegments, Record
from dunlin.engine.decoder.numerics import Numerics
from dunlin.engine.device.base import DeviceUnavailable, EngineDevice
from dunlin.engine.device.device_arena import DeviceMemory
from dunlin.engine.device.host_driver import HostMemoryDriver
from dunlin.engine.device.kv_access import DeviceKvAccess
from dunlin.engine.device.memory_driver import CudaMemoryDriver
from dunlin.engine.device.names import INTERPRET, device_number
from dunlin.engine.device.pacing import CudaMark, CudaPacer, HostPacer
from dunlin.engine.device.room import CUDA_CONTEXT_BYTES, CUDA_LIBRARY_BYTES, DeviceRoom
from dunlin.engine.device.staging import CudaStaging, HostStaging
from dunlin.engine.device.warm_steps import GPU_WARM_STEPS

TIMED_CALLS = 20
ADA = (8, 9)
"""Triton loads E4M3 on GPUs of this compute capability and above."""
INSTALL = "pip install 'dunlin[server,gpu]' with a CUDA build of torch"


def cuda_device(name: str) -> EngineDevice:
    """GPU number N of `cuda:N`; `cuda` is the first.

    :raises DeviceUnavailable: there is none, or a package that it takes is missing.
    """
    device = torch.device("cuda", device_number(name))
    _check_cuda(device)
    torch.cuda.set_device(device)
    torch.empty(1, device=device)  # makes the context that the driver's calls are for
    try:
        driver = CudaMemoryDriver(device)
    except ModuleNotFoundError as error:
        raise DeviceUnavailable(f"{name}: no package {error.name}; {INSTALL}") from None
    library, staging = installed_flashinfer(), CudaStaging(device)
    return EngineDevice(
        name,
        device,
        _gpu_numerics(name),
        DeviceMemory(driver),
        DeviceKvAccess(staging),
        CudaPacer(device),
        time.perf_counter,
        _segments(CudaGraphs(), warms_up=True),
        partial(_choose_prompts, library) if library else None,
        rows_may_leave_segments=True,
        warm_steps=GPU_WARM_STEPS,
        room=DeviceRoom(
            lambda: torch.cuda.mem_get_info(device),
            CUDA_CONTEXT_BYTES,
            CUDA_LIBRARY_BYTES + (DEVICE_BYTES if library else 0),
        ),
        reads_fp8=torch.cuda.get_device_capability(device) >= ADA,
        staging=staging,
    )


def interpreted_device(name: str = INTERPRET, granule_bytes: int = 1 << 16) -> EngineDevice:
    """A GPU's code over host memory: Triton interprets its kernels, and graphs are calls.

    :raises DeviceUnavailable: Triton is missing, or was told to compile.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise DeviceUnavailable(f"{name}: set TRITON_INTERPRET=1 before Python starts: Triton reads it once")
    driver, staging = HostMemoryDriver(granule_bytes), HostStaging()
    return EngineDevice(
        name,
        torch.device("cpu"),
        _gpu_numerics(name),
        DeviceMemory(driver),
        DeviceKvAccess(staging),
        HostPacer(),
        work_clock=time.perf_counter,
        begin_segments=_segments(call_again, warms_up=False),
        rows_may_leave_segments=True,
        warm_steps=(),  # no kernel is compiled
        room=DeviceRoom(driver.memory_left),
        staging=staging,
    )


def _gpu_numerics(name: str) -> Callable[[], tuple[Numerics, str]]:
    def choose() -> tuple[Numerics, str]:
        try:
            from dunlin.engine.decoder.gpu.gpu_numerics import gpu_numerics
        except ModuleNotFoundError as error:
            raise DeviceUnavailable(f"{name}: no package {error.name}; {INSTALL}") from None
        return gpu_numerics(), f"{describe(name)}: attention, norms and positions by Triton, products by torch"

    return choose


def _choose_prompts(library: str, decoder: Decoder) -> tuple[Numerics, str]:
    from dunlin.engine.decoder.gpu.gpu_numerics import choose_prompts

    return choose_prompts(library, decoder, device_seconds, lambda: CudaMark(torch.cuda.current_stream()).wait)


def device_seconds(work: Callable[[], object]) -> float:
    """What the GPU takes for `work` once it is warm: the mean of `TIMED_CALLS`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    work()
    begin.record()
    for _ in range(TIMED_CALLS):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / TIMED_CALLS


def describe(name: str) -> str:
    """The device in words."""
    if name == INTERPRET:
        return "a GPU's code interpreted on the CPU"
    return str(torch.cuda.get_device_name(torch.cuda.current_device()))


def _check_cuda(device: torch.device) -> None:
    if torch.version.cuda is None:
        raise DeviceUnavailable(
            f"{device}: torch {torch.__version__} is built without CUDA; {INSTALL}, or --device cpu"
        )
    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"{device}: torch finds no CUDA driver or no GPU; see nvidia-smi, or --device cpu")
    if (device.index or 0) >= torch.cuda.device_count():
        raise DeviceUnavailable(f"{device}: there are {torch.cuda.device_count()} GPUs, numbered from 0")


def _segments(record: Record, warms_up: bool) -> Callable[[Decoder, Callable[[], object] | None], BeginSegments]:
    def make(decoder: Decoder, beat: Callable[[], object] | None = None) -> BeginSegments:
        from dunlin.engine.decoder.gpu.recorded_segments import RecordedSegments

        segments = RecordedSegments(decoder, record)
        if warms_up and beat is not None:
            segments.warm_up(beat)
        return segments.begin

    return make


class CudaGraphs:
    """Records what a function launches as a CUDA graph. The graphs share their memory: what one leaves there the next
    may write over, so results go to buffers of the caller's.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._beside: torch.cuda.Stream | None = None
        """One for all: the library of products keeps a work space for each stream."""
        self._first: torch.cuda.CUDAGraph | None = None
        """Kept: once none of its graphs is left, torch forgets the memory, and recording again fails."""

    def __call__(self, function: Callable[[], None], is_known: bool) -> Callable[[], None]:
        """See `Record`. What is not known is run twice before, so that kernels are compiled and libraries have their
        work spaces.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        beside = self._beside = self._beside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(beside):
            for _ in range(0 if is_known else 2):
                function()
            # `torch.cuda.graph` collects garbage and empties the allocator's cache each time: longer than all the rest.
            # Another thread of this process may ask the driver meanwhile: torch's, that watches over several ranks.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                function()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(beside)
        self._first = self._first or graph

        def replay() -> None:
            graph.replay()

        return replay


def call_again(function: Callable[[], None], is_known: bool) -> Callable[[], None]:
    """What records where there is nothing to record with."""
    return function
