"""What an engine says to the peers that write into its memory: whether it lives, its layout, where its slots lie.

The page lies in a memory file of the engine's parent, behind the safepoint counter, so it outlives the engine: the next
one overwrites `life`, and what was met before it is over. A writer holds the file's shared lock for each chunk and
looks at the page under it; the owner closes the page first and then takes the exclusive lock, so that no chunk is being
written when the layout changes, and none begins. The kernel takes the lock of a process that dies.
"""

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from dunlin.engine.transfer.errors import LayoutChangingError, TransferError
from dunlin.engine.transfer.peer_rooms import open_extents, room_lock, writing_room

PAGE_OFFSET = 4096
_GEOMETRY_OFFSET = 8192
_WORDS = struct.Struct("<8sqqqq")
_MAGIC = b"dunlinPP"
_CLOSED = -1
_PAUSE_S = 0.0005
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PageWords:
    """`life` names one process of the engine; `layout` is -1 while it changes. `version` counts what was published:
    slots come and go within a layout, too.
    """

    life: int
    layout: int
    length_bytes: int
    version: int

    @property
    def is_open(self) -> bool:
        return self.layout != _CLOSED


class PeerPage:
    """The owner's side. Opened closed: no peer writes until `publish`."""

    def __init__(
        self,
        fd: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = 10.0,
    ) -> None:
        """
        Args:
            fd: the memory file; it is opened anew, for the lock belongs to the opening.
            clock: seconds.
            sleep: waits so many seconds.
            patience_s: seconds that a writer may need for one chunk.

        Raises:
            TimeoutError: a peer that met the engine before is in the midst of a chunk and does not go on.
        """
        self._clock, self._sleep, self._patience_s = clock, sleep, patience_s
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self.life = self._version = 0
        self.renew()

    def renew(self) -> None:
        """Begin another life, closed: peers that met the one before cannot write any more.

        :raises TimeoutError: as `closed`.
        """
        self.life = int.from_bytes(os.urandom(7), "little") | 1
        with self.closed():
            pass

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """No peer writes while this is entered, nor after it until `publish`.

        :raises TimeoutError: a peer is in the midst of a chunk and does not go on.
        """
        self._write(_CLOSED, 0)
        self._lock()
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def await_writers(self, room: int) -> None:
        """Return once no chunk is being written into the room, which is closed: none follows.

        :raises TimeoutError: as `closed`.
        """
        with self._patiently(lambda: room_lock(self._fd, room)):
            pass

    def publish(self, layout: int, geometry: bytes) -> None:
        """Let peers write where `geometry` says. :raises TimeoutError: as `closed`."""
        with self.closed():
            os.pwrite(self._fd, geometry, _GEOMETRY_OFFSET)
            self._version += 1
            self._write(layout, len(geometry))

    def close(self) -> None:
        """Close the file; what was published stays."""
        os.close(self._fd)

    def _write(self, layout: int, length_bytes: int) -> None:
        os.pwrite(self._fd, _WORDS.pack(_MAGIC, self.life, layout, length_bytes, self._version), PAGE_OFFSET)

    def _lock(self) -> None:
        self._patiently(lambda: fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB))

    def _patiently(self, attempt: Callable[[], _T]) -> _T:
        """What the attempt gives, once it succeeds. :raises TimeoutError: as `closed`."""
        until_s = self._clock() + self._patience_s
        while True:
            try:
                return attempt()
            except BlockingIOError:
                if self._clock() > until_s:
                    raise TimeoutError(
                        f"a peer has been writing one chunk for {self._patience_s} s: end its engine"
                    ) from None
            self._sleep(_PAUSE_S)


class PeerPageView:
    """A peer's side: reads the page, and holds its lock for each chunk."""

    def __init__(self, path: str, life: int) -> None:
        """
        Args:
            path: opens the memory file.
            life: the engine that was met.

        Raises:
            TransferError: the file is not there, or the engine is another one.
        """
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TransferError(f"the peer's memory is not there: {error}") from None
        self._life = life
        try:
            self._read()
        except TransferError:
            self.close()
            raise

    @contextlib.contextmanager
    def writing(self, layout: int, version: int, room: int = 0) -> Iterator[None]:
        """One chunk may be written, or read, while this is entered, where the geometry of that `version` says: into the
        slots of `room`, or into memory of no room (0).

        :raises TransferError: the engine is another one, its layout is not `layout` (any more), its slots changed, or
            the room is closed.
        """
        with self._locked() as words:
            if words.layout != layout:
                raise TransferError(f"the peer's layout is {words.layout}, the transfer was ordered for {layout}")
            if words.version != version:
                raise TransferError(f"the slots of the peer's layout {layout} changed")
            with writing_room(self._fd, room) if room else contextlib.nullcontext():
                yield

    def room_extents(self, room: int) -> tuple[list[int], list[int]]:
        """The slots of a room: starts and lengths. :raises TransferError: it is not open."""
        if self._fd < 0:
            raise TransferError("the peer is gone, or was met anew")
        return open_extents(self._fd, room)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """What has no layout may be written while this is entered. :raises TransferError: as `writing`, while the
        layout changes, too.
        """
        with self._locked():
            yield

    @property
    def is_current(self) -> bool:
        """Whether `close` was not called, and the engine is the one that was met."""
        if self._fd < 0:
            return False
        try:
            self._read()
        except TransferError:
            return False
        return True

    def version(self) -> int:
        """Of what the engine published last. :raises TransferError: nothing now, or the engine is another one."""
        with self._locked() as words:
            return words.version

    def geometry(self) -> tuple[int, bytes]:
        """What the engine published: (version, geometry). :raises TransferError: as `version`."""
        with self._locked() as words:
            return words.version, os.pread(self._fd, words.length_bytes, _GEOMETRY_OFFSET)

    def close(self) -> None:
        """From now on nothing may be written."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[PageWords]:
        if self._fd < 0:
            raise TransferError("the peer is gone, or was met anew")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LayoutChangingError("the peer's layout is changing") from None
        try:
            words = self._read()
            if not words.is_open:
                raise LayoutChangingError("the peer's layout is changing")
            yield words
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read(self) -> PageWords:
        data = os.pread(self._fd, _WORDS.size, PAGE_OFFSET)
        if len(data) < _WORDS.size or not data.startswith(_MAGIC):
            raise TransferError("the peer's memory has no page for peers")
        words = PageWords(*_WORDS.unpack(data)[1:])
        if words.life != self._life:
            raise TransferError("the peer's engine is another one since: it has to be met again")
        return words
