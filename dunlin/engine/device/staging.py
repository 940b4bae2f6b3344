"""Host memory through which transfers pass between a device and the rest of the node: pinned, on its own stream."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

STAGING_BYTES = 8 << 20


class Staging(Protocol):
    """One buffer, `[size_bytes]` uint8, and copies between its beginning and pieces of device memory, in order. They
    are tensors, or name memory of other processes, too.
    """

    @property
    def buffer(self) -> Tensor: ...

    def read(self, pieces: Sequence[Any]) -> None:
        """Device to buffer: what was launched before has written the pieces. The bytes are there on return."""
        ...

    def write(self, pieces: Sequence[Any]) -> None:
        """Buffer to device: after what was launched before; what is launched on return sees the bytes."""
        ...


class HostStaging:
    """The same copies where the device's memory is the host's."""

    def __init__(self, size_bytes: int = STAGING_BYTES) -> None:
        self.buffer = torch.empty(size_bytes, dtype=torch.uint8)

    def read(self, pieces: Sequence[Tensor]) -> None:
        for part, piece in _parts(self.buffer, pieces):
            part.copy_(piece)

    def write(self, pieces: Sequence[Tensor]) -> None:
        for part, piece in _parts(self.buffer, pieces):
            piece.copy_(part)


class CudaStaging:
    """See `Staging`: pinned, so that the copies run beside the kernels of a step."""

    def __init__(self, device: torch.device, size_bytes: int = STAGING_BYTES) -> None:
        self.buffer = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def read(self, pieces: Sequence[Tensor]) -> None:
        self._copy([(part, piece) for part, piece in _parts(self.buffer, pieces)])

    def write(self, pieces: Sequence[Tensor]) -> None:
        self._copy([(piece, part) for part, piece in _parts(self.buffer, pieces)])

    def _copy(self, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
        self._stream.synchronize()


def _parts(buffer: Tensor, pieces: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    at = 0
    for piece in pieces:
        yield buffer[at : at + len(piece)], piece
        at += len(piece)
