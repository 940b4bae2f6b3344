"""Which slots of an engine peers may write now: the rooms that its instance has open, by handle.

A table in the file of the peer page, written by the instance. A record holds the handle and the slots of one open room;
a handle is never used twice. A writer locks the record's byte for each chunk and looks for its handle under the lock;
the engine waits for the lock once the record is closed. The kernel takes locks from a process that dies. Loads no
torch.
"""

import fcntl
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from dunlin.engine.transfer.errors import TransferError

RECORDS = 1024
EXTENTS_MOST = 4000
_RECORD_BYTES = 64 << 10
_TABLE_OFFSET = 64 << 20
_HEAD = struct.Struct("<qq")
_LOCK = struct.Struct("@hhqqi4x")


class PeerRoomTable:
    """The instance's side: opens and closes rooms of its engine."""

    def __init__(self, fd: int) -> None:
        """`fd`: the memory file of the peer page."""
        self._fd = fd
        self._handles: dict[int, int] = {}

    def open(self, handle: int, starts: Sequence[int], lengths: Sequence[int]) -> bool:
        """Let peers write these slots; False: another open room has the record, or the extents are too many."""
        record = handle % RECORDS
        if len(starts) > EXTENTS_MOST or self._handles.get(record, handle) != handle:
            return False
        self._handles[record] = handle
        columns = array("q", starts).tobytes() + array("q", lengths).tobytes()
        os.pwrite(self._fd, columns, _offset(handle) + _HEAD.size)
        os.pwrite(self._fd, _HEAD.pack(handle, len(starts)), _offset(handle))
        return True

    def close(self, handle: int) -> None:
        """No chunk of the room begins from now on; one may still be under way. An unknown handle is ignored."""
        if self._handles.get(handle % RECORDS) == handle:
            del self._handles[handle % RECORDS]
            os.pwrite(self._fd, _HEAD.pack(0, 0), _offset(handle))

    def clear(self) -> None:
        """Close all rooms: the engine that they belong to is gone."""
        for handle in list(self._handles.values()):
            self.close(handle)


def open_extents(fd: int, handle: int) -> tuple[list[int], list[int]]:
    """The slots of a room: starts and lengths. :raises TransferError: it is not open."""
    count = _count(fd, handle)
    data = os.pread(fd, 16 * count, _offset(handle) + _HEAD.size)
    _count(fd, handle)  # the record may have become another room's in between
    columns = array("q", data)
    return list(columns[:count]), list(columns[count:])


@contextmanager
def writing_room(fd: int, handle: int) -> Iterator[None]:
    """One chunk may be written into the room while this is entered. :raises TransferError: it is not open."""
    try:
        lock = _locked(fd, handle, fcntl.F_RDLCK)
    except BlockingIOError:  # the engine waits for its writers: it is being closed
        raise TransferError(_closed(handle)) from None
    with lock:
        _count(fd, handle)
        yield


def room_lock(fd: int, handle: int) -> AbstractContextManager[None]:
    """Keeps writers out of the room. :raises BlockingIOError: when called, if a chunk is being written there."""
    return _locked(fd, handle, fcntl.F_WRLCK)


def _count(fd: int, handle: int) -> int:
    head = os.pread(fd, _HEAD.size, _offset(handle))
    found, count = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
    if found != handle or not 0 <= count <= EXTENTS_MOST:
        raise TransferError(_closed(handle))
    return int(count)


def _closed(handle: int) -> str:
    return f"the room {handle} is closed"


def _offset(handle: int) -> int:
    return _TABLE_OFFSET + handle % RECORDS * _RECORD_BYTES


def _lock(fd: int, handle: int, kind: int) -> None:
    """Of the record, and of this opening of the file: two openings in one process exclude each other, too."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, _offset(handle), 1, 0))


@contextmanager
def _unlocking(fd: int, handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        _lock(fd, handle, fcntl.F_UNLCK)


def _locked(fd: int, handle: int, kind: int) -> AbstractContextManager[None]:
    _lock(fd, handle, kind)
    return _unlocking(fd, handle)
