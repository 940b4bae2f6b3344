"""The file of tenants on disk: read at the start, and again whenever it changed. Knows who wants to know, not why."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from dunlin.auth.tenants import Tenant, TenantsError, parse_tenants
from dunlin.wire.errors import StartError

_log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0

FileSignature = tuple[int, int, int]


class TenantsFile:
    """Follows one file. A new text that is no good changes nothing: it is logged, and the last good one holds."""

    def __init__(self, path: Path, on_tenants: Callable[[tuple[Tenant, ...]], None]) -> None:
        self._path = path
        self._on_tenants = on_tenants
        self._seen: FileSignature | None = None

    def load(self) -> None:
        """The first reading.

        Raises:
            StartError: no such file, or no good one.
        """
        try:
            tenants = self._read()
        except (OSError, TenantsError) as error:
            raise StartError(f"--keys {self._path}: {_error_text(error)}") from error
        self._on_tenants(tenants)

    async def follow(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Read the file if it changed."""
        try:
            if self._signature() == self._seen:
                return
            # In a thread: thousands of tenants take a while, and tokens are flowing here.
            tenants = await asyncio.to_thread(self._read)
        except (OSError, TenantsError) as error:
            _log.error("%s: %s; the tenants and keys read before still hold", self._path, _error_text(error))
        else:
            _log.info("%s: read anew, %d tenants", self._path, len(tenants))
            self._on_tenants(tenants)

    def _read(self) -> tuple[Tenant, ...]:
        # Before the text: a change between the two is seen at the next look.
        self._seen = self._signature()
        return parse_tenants(self._path.read_bytes(), self._path.suffix == ".toml")

    def _signature(self) -> FileSignature | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _error_text(error: OSError | TenantsError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
