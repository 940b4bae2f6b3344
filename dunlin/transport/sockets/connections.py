"""Connections to receivers of regions, kept for the next region."""

import contextlib
import socket

from dunlin.auth.tls_context import MakeContext

MAX_KEPT = 128
"""Connections kept at once. A peer that is started again has another endpoint: those to its last one are of no use."""


class ConnectionPool:
    """Owns the connections that are not in use, by endpoint, the one kept last at the end. All calls come from one
    thread.
    """

    def __init__(self, tls: MakeContext | None, stall_s: float) -> None:
        """
        Args:
            tls: for receivers that show a certificate.
            stall_s: seconds after which a connection that takes no byte has failed.
        """
        self._tls = tls
        self._stall_s = stall_s
        self._kept: dict[str, list[socket.socket]] = {}

    def take(self, endpoint: str, server_name: str) -> tuple[socket.socket, bool]:
        """A connection, and whether it was kept: then its other end may have closed it.

        :raises OSError, ValueError: it cannot be reached.
        """
        if endpoint not in self._kept:
            return self.connect(endpoint, server_name), False
        stream = self._kept[endpoint].pop()
        if not self._kept[endpoint]:
            del self._kept[endpoint]
        return stream, True

    def keep(self, endpoint: str, stream: socket.socket) -> None:
        """Put back a connection that has nothing under way; of too many the endpoint used longest ago loses its own."""
        self._kept[endpoint] = [*self._kept.pop(endpoint, ()), stream]
        if sum(map(len, self._kept.values())) > MAX_KEPT:
            _close(self._kept.pop(next(iter(self._kept))))

    def connect(self, endpoint: str, server_name: str) -> socket.socket:
        """A new connection; raises as `connect`."""
        return connect(endpoint, server_name, self._tls, self._stall_s)

    def close(self) -> None:
        """Close all that is kept."""
        for streams in self._kept.values():
            _close(streams)
        self._kept.clear()


def _close(streams: list[socket.socket]) -> None:
    for stream in streams:
        with contextlib.suppress(OSError):
            stream.close()


def connect(endpoint: str, server_name: str, tls: MakeContext | None, timeout_s: float) -> socket.socket:
    """A connection to `endpoint` ("host:port"), which with TLS shows a certificate of `server_name`.

    :raises OSError, ValueError: it cannot be reached.
    """
    host, _, port = endpoint.rpartition(":")
    plain = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return plain
    try:
        return tls().wrap_socket(plain, server_hostname=server_name)
    except OSError:
        plain.close()
        raise
