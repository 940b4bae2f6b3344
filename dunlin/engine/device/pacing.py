"""How far the host runs ahead of a device: it launches a piece of a step once little enough is left to be done.

So a stop takes effect soon, and the device always has a piece to go on with.
"""

import time
from collections import deque
from functools import cache
from math import ceil
from typing import Any, Protocol

import torch

from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.native.decode_steps import ALL_BEGUN, load_step_library

AHEAD_MS = 2.0
"""Work that is launched beyond the piece that is computed, at least: in so long the host begins the next step."""
MOST_AHEAD = 16
_LOOK_S = 20e-6


class LaunchMark(Protocol):
    """A moment between two launches."""

    @property
    def is_done(self) -> bool:
        """Whether all that was launched before it is done."""
        ...

    def wait(self) -> None:
        """Until it is."""
        ...


class Pacer(Protocol):
    """Bounds what is launched and not done. Called by the thread that launches."""

    def pace(self, left: int) -> None:
        """A piece was launched, and so many of its step are `left`: wait until few enough are under way."""
        ...

    def settle(self) -> None:
        """A step was launched: wait until all of it is done."""
        ...

    def advance(self, most_s: float) -> bool:
        """Wait for what was launched, for about so long at most; whether all of it is done."""
        ...

    def mark(self) -> LaunchMark | None:
        """This moment; None: pieces that rows may leave are done when the call that launches them returns."""
        ...


class HostPacer:
    """See `Pacer`, where work is done when the call that launches it returns."""

    def pace(self, left: int) -> None: ...

    def settle(self) -> None: ...

    def advance(self, most_s: float) -> bool:
        return True

    def mark(self) -> None: ...


HOST_PACER = HostPacer()


class KernelPacer:
    """See `Pacer`, where the kernel of decode steps computes beside the launching thread: one that waits joins in."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def pace(self, left: int) -> None: ...

    def settle(self) -> None:
        self._library.dunlin_decode_join(ALL_BEGUN, -1.0)

    def advance(self, most_s: float) -> bool:
        return bool(self._library.dunlin_decode_join(ALL_BEGUN, most_s))

    def mark(self) -> None: ...


@cache
def choose_host_pacer() -> Pacer:
    """For this processor: of its kernel of decode steps, if there is one."""
    try:
        library = load_step_library()
    except KernelUnavailable:
        return HOST_PACER
    return KernelPacer(library) if library.dunlin_level() else HOST_PACER


class CudaMark:
    """See `LaunchMark`, on a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    @property
    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()


class CudaPacer:
    """Owns an event for each piece that is under way on the current stream of `device`.

    As many as take `AHEAD_MS`, if the longest of the last few pieces is any guide, and one at least: the launches of
    short pieces take the host as long as the pieces take the device. Towards the end of a step, where stopping it would
    spare hardly anything, up to twice as many: the host has to begin the next step meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[torch.cuda.Event] = deque()
        self._done: torch.cuda.Event | None = None
        self._lengths_ms: deque[float] = deque(maxlen=6)

    def pace(self, left: int) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        while self._events and (len(self._events) > self._most(left) or self._events[0].query()):  # type: ignore[no-untyped-call]
            self._take()

    def settle(self) -> None:
        self._events.clear()
        self._done = None
        torch.cuda.current_stream(self._device).synchronize()

    def advance(self, most_s: float) -> bool:
        stream, stop_s = torch.cuda.current_stream(self._device), time.perf_counter() + most_s
        while not stream.query() and time.perf_counter() < stop_s:
            time.sleep(_LOOK_S)
        return bool(stream.query())

    def mark(self) -> CudaMark:
        return CudaMark(torch.cuda.current_stream(self._device))

    def _most(self, left: int) -> int:
        """Pieces that may be under way."""
        if len(self._lengths_ms) < (self._lengths_ms.maxlen or 0):
            return 1
        most = ceil(AHEAD_MS / max(*self._lengths_ms, 1e-3))
        return min(most + max(most - left, 0), MOST_AHEAD)

    def _take(self) -> None:
        """Wait for the oldest piece, and learn what it took."""
        event = self._events.popleft()
        event.synchronize()
        if self._done is not None:
            self._lengths_ms.append(self._done.elapsed_time(event))
        self._done = event
