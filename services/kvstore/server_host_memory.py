"""The host tier's memory: anonymous shared memory of one fixed size, filled with real pages before any process maps it.

Reads and writes no byte of it itself. A process that may open this process's file descriptors may map it.
"""

import fcntl
import mmap
import os

from dunlin.runtime.memory import available_memory_bytes

CHUNK_BYTES = 64 << 20
SPARE_BYTES = 256 << 20
"""Memory that is left to the other processes of the machine, bytes."""

_MIB = 1 << 20


class HostMemoryError(Exception):
    """The tier cannot be had; the text says how much there is and what to do."""


class SharedHostMemory:
    """Owns the memory file. Its size never changes, so no mapping can ever fault."""

    def __init__(self, size_bytes: int) -> None:
        """Allocate and fill `size_bytes`.

        Raises:
            HostMemoryError: not enough memory; nothing is kept then.
        """
        self.size_bytes = size_bytes
        self._check(size_bytes)
        self._fd = os.memfd_create("dunlin-host-tier", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, size_bytes)
            self._fill()
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def path(self) -> str:
        """What another process of this node and user opens to map the tier."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def view(self) -> memoryview:
        """All of its bytes, for the transport of regions to and from other nodes."""
        return memoryview(mmap.mmap(self._fd, self.size_bytes))

    def close(self) -> None:
        """Close the memory file; existing mappings stay valid."""
        os.close(self._fd)

    def _fill(self) -> None:
        for offset in range(0, self.size_bytes, CHUNK_BYTES):
            chunk = min(CHUNK_BYTES, self.size_bytes - offset)
            self._check(chunk)
            try:
                os.posix_fallocate(self._fd, offset, chunk)
            except OSError as error:
                raise HostMemoryError(_too_little(self.size_bytes, available_memory_bytes(), str(error))) from error

    def _check(self, wanted_bytes: int) -> None:
        available = available_memory_bytes()
        if wanted_bytes + SPARE_BYTES > available:
            raise HostMemoryError(_too_little(self.size_bytes, available, f"{SPARE_BYTES // _MIB} MiB stay for others"))


def _too_little(wanted: int, available: int, detail: str) -> str:
    return (
        f"no room for a host tier of {wanted // _MIB} MiB: {available // _MIB} MiB are available ({detail}); "
        "choose a smaller --tier-bytes"
    )
