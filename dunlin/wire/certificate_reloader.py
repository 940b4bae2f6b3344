"""Reads the certificates of a process again when their files change, so that they can be rotated without a restart.

Who opens or accepts a connection asks for the credentials at that moment. Connections that are open stay as they are.
"""

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from dunlin.auth.certificates import CA, CERTIFICATE, KEY
from dunlin.wire.errors import StartError
from dunlin.wire.security import TlsIdentity

CHECK_S = 60.0
"""Seconds after which `watch` finds a change that no new connection has found."""

WARN_DAYS, WARN_SHARE = 30.0, 0.25
"""A certificate with less time left, in days and of its whole time, should have been renewed: cert-manager and certbot
do so when a third is left.
"""
_DAY_S = 86_400.0

_log = logging.getLogger(__name__)

LoadIdentity = Callable[[], TlsIdentity]
_FileStates = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What was made of the files when they were read last. Contexts are made then, because they read files too."""

    identity: TlsIdentity
    channel_credentials: grpc.ChannelCredentials
    client_context: ssl.SSLContext
    server_contexts: tuple[ssl.SSLContext, ssl.SSLContext]


class CertificateReloader:
    """The certificates in one directory, as of now. Any thread may ask.

    Files that cannot be used (one is missing or broken, they do not fit each other, they are another process's) change
    nothing: the last good ones hold, and one line of the log says what is wrong.
    """

    def __init__(self, load: LoadIdentity) -> None:
        """`load` reads and checks the files; it is called now, and whenever they have changed.

        Raises:
            StartError: they cannot be used.
        """
        self._load = load
        self._lock = threading.Lock()
        self._loaded = _made_of(load())
        self._states: _FileStates = ()
        self._warned: TlsIdentity | None = None
        self._look()  # once more, so that a change during the first reading is not missed

    def current(self) -> TlsIdentity:
        """The identity to use for a connection that begins now."""
        return self._look().identity

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is opened now; the same object until the files change."""
        return self._look().channel_credentials

    def client_context(self) -> ssl.SSLContext:
        """For a plain socket that dials now."""
        return self._look().client_context

    def server_context(self, *, demands_certificate: bool = True) -> ssl.SSLContext:
        """For a plain socket that was accepted now."""
        return self._look().server_contexts[demands_certificate]

    def server_credentials(self, *, demands_certificate: bool = True) -> grpc.ServerCredentials:
        """For a gRPC server: it asks before each handshake, from a thread of its own, whether there are others."""
        served = self.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            now = self.current()
            if now is served:
                return None
            served = now
            return now.server_configuration(demands_certificate=demands_certificate)

        first = served.server_configuration(demands_certificate=demands_certificate)
        # gRPC takes None for "as before"; its stubs do not.
        return grpc.dynamic_ssl_server_credentials(first, fetch, demands_certificate)  # type: ignore[arg-type]

    async def watch(self) -> None:
        """Look for changes for ever, so that a fault is in the log long before the certificate in use ends, and a
        renewal that did not come as well.
        """
        while True:
            self._warn_of_end()
            await asyncio.sleep(CHECK_S)

    def _warn_of_end(self) -> None:
        """Once for each certificate."""
        identity = self.current()
        left_days, whole_days = ((identity.ends_s - since_s) / _DAY_S for since_s in (time.time(), identity.begins_s))
        if identity is not self._warned and left_days < min(WARN_DAYS, WARN_SHARE * whole_days):
            self._warned = identity
            _log.warning("the certificate in %s ends in %.1f days", identity.directory, left_days)

    def _look(self) -> _Loaded:
        with self._lock:
            directory = self._loaded.identity.directory
            states = _file_states(directory)
            if states != self._states:
                self._states = states
                self._read_again(directory)
            return self._loaded

    def _read_again(self, directory: Path) -> None:
        try:
            identity = self._load()
            if identity == self._loaded.identity:
                return
            self._loaded = _made_of(identity)
        except StartError as error:
            _log.warning("goes on with the certificates read before from %s: %s", directory, error)
            return
        _log.info("new connections use the certificates that were put into %s", directory)


def _made_of(identity: TlsIdentity) -> _Loaded:
    open_to_all, mutual = (identity.server_context(demands_certificate=demands) for demands in (False, True))
    return _Loaded(identity, identity.channel_credentials(), identity.client_context(), (open_to_all, mutual))


def _file_states(directory: Path) -> _FileStates:
    return tuple(_file_state(directory / name) for name in (CA, CERTIFICATE, KEY))


def _file_state(path: Path) -> tuple[int, ...]:
    """Differs when the file, or what a link on its path points to, has been replaced; empty: it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
