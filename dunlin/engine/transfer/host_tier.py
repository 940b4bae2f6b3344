"""The node's shared host tier, as an engine sees it. Knows no region."""

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from dunlin.engine.transfer.errors import TransferError
from dunlin.messages.engine import MapHost

Bytes = NDArray[np.uint8]
"""A contiguous stretch of memory, `[length_bytes]`."""


class HostMapping:
    """The node's shared host tier, once mapped."""

    def __init__(self) -> None:
        self._bytes: Bytes | None = None

    def map(self, message: MapHost) -> None:
        """Map the kvstore's shared memory; an earlier one is forgotten.

        :raises OSError: it cannot be opened.
        :raises ValueError: it is smaller than the message says.
        """
        fd = os.open(message.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._bytes = np.frombuffer(mmap.mmap(fd, message.size_bytes), dtype=np.uint8)
        finally:
            os.close(fd)

    def host_view(self, offset_bytes: int, length_bytes: int) -> Bytes:
        """The bytes of one region.

        :raises TransferError: no tier is mapped or the region lies outside.
        """
        if self._bytes is None:
            raise TransferError("no host tier is mapped")
        if offset_bytes < 0 or length_bytes < 0 or offset_bytes + length_bytes > len(self._bytes):
            raise TransferError(
                f"{length_bytes} bytes at {offset_bytes} lie outside the host tier of {len(self._bytes)} bytes"
            )
        return self._bytes[offset_bytes : offset_bytes + length_bytes]
