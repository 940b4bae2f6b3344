"""The file of tenants on disk: read at the start and whenever it changed, and passed to a callback."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from dunlin.auth.tenants import Tenant, TenantsError, parse_tenants
from dunlin.wire.errors import StartError

_log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0

FileSignature = tuple[int, int, int]
"""(modification time in ns, size in bytes, inode)."""


class TenantsFile:
    """Follows one file. A changed file that cannot be read is logged, and the tenants read before it stay in force.

    `error_of` says what a tenant has that is not allowed here; empty: nothing. Such a file is as one that is invalid.
    """

    def __init__(
        self,
        path: Path,
        on_tenants: Callable[[tuple[Tenant, ...]], None],
        error_of: Callable[[Tenant], str] = lambda tenant: "",
    ) -> None:
        self._path = path
        self._on_tenants = on_tenants
        self._error_of = error_of
        self._seen: FileSignature | None = None
        self._told = ""

    def load(self) -> None:
        """Read the file for the first time.

        Raises:
            StartError: the file is missing or invalid.
        """
        try:
            tenants = self._read()
        except (OSError, TenantsError) as error:
            raise StartError(f"--keys {self._path}: {_error_text(error)}") from error
        self._on_tenants(tenants)

    async def follow(self) -> None:
        """Check for changes every `POLL_INTERVAL_S` until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Read the file if it changed."""
        try:
            if self._signature() == self._seen:
                return
            # In a thread: parsing thousands of tenants would hold up the streams on the event loop.
            tenants = await asyncio.to_thread(self._read)
        except TenantsError as error:
            self._tell(_error_text(error))
        except OSError as error:  # it may pass, and the file be the same: it is read again at the next check
            self._seen = None
            self._tell(_error_text(error))
        else:
            self._told = ""
            _log.info("%s: read anew, %d tenants", self._path, len(tenants))
            self._on_tenants(tenants)

    def _tell(self, error: str) -> None:
        if error != self._told:
            self._told = error
            _log.error("%s: %s; the tenants and keys read before still hold", self._path, error)

    def _read(self) -> tuple[Tenant, ...]:
        # The signature before the text: a change between the two is seen at the next check.
        self._seen = self._signature()
        tenants = parse_tenants(self._path.read_bytes(), self._path.suffix == ".toml")
        for tenant in tenants:
            if error := self._error_of(tenant):
                raise TenantsError(f"tenants.{tenant.name}: {error}")
        return tenants

    def _signature(self) -> FileSignature | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _error_text(error: OSError | TenantsError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
