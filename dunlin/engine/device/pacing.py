"""How far the host runs ahead of a device: it launches a piece of a step once the last but one is done.

So a stop takes effect after two pieces at most, and the device always has one to go on with.
"""

from collections import deque
from typing import Protocol

import torch


class Pacer(Protocol):
    """Bounds what is launched and not done. Called by the thread that launches."""

    def pace(self) -> None:
        """A piece was launched: wait until the one before it is done."""
        ...

    def settle(self) -> None:
        """A step was launched: wait until all of it is done."""
        ...


class CudaPacer:
    """Owns an event for each piece that is under way on the current stream of `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[torch.cuda.Event] = deque()

    def pace(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        if len(self._events) > 1:
            self._events.popleft().synchronize()

    def settle(self) -> None:
        self._events.clear()
        torch.cuda.current_stream(self._device).synchronize()
