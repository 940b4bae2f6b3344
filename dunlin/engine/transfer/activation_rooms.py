"""Rooms for activations and partial attention results: shared memory in which peers write, and steps read.

The instance hands the rooms out; this is only where they lie. Room 0 is no room. Pages that were never written cost
nothing.
"""

import mmap
import os
import weakref

import numpy as np

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes


class ActivationRooms:
    """Owns a memory file of `count` rooms of `room_bytes` each, numbered from 1."""

    def __init__(self, count: int = 64, room_bytes: int = 16 << 20) -> None:
        self.count = count
        self.room_bytes = room_bytes
        self.fd = os.memfd_create("dunlin-activations", os.MFD_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, count * room_bytes)
        self._bytes = np.frombuffer(mmap.mmap(self.fd, count * room_bytes), dtype=np.uint8)

    def view(self, room: int, length_bytes: int) -> Bytes:
        """The first bytes of a room.

        :raises TransferError: there is no such room, or it is smaller.
        """
        start = room_offset(room, length_bytes, self.count, self.room_bytes)
        return self._bytes[start : start + length_bytes]

    def close(self) -> None:
        """Close the file; the memory goes with the last view of it."""
        self._closing()


def room_offset(room: int, length_bytes: int, count: int, room_bytes: int) -> int:
    """Where the room begins. :raises TransferError: there is no such room, or it is smaller than `length_bytes`."""
    if not 1 <= room <= count:
        raise TransferError(f"there is no activation room {room}, only 1 to {count}")
    if not 0 < length_bytes <= room_bytes:
        raise TransferError(f"{length_bytes} bytes in an activation room of {room_bytes}")
    return (room - 1) * room_bytes
