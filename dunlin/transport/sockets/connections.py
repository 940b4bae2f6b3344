"""Connections to receivers of regions, kept for the next region."""

import contextlib
import socket
import ssl


class ConnectionPool:
    """Owns the connections that are not in use. All calls come from one thread."""

    def __init__(self, tls: ssl.SSLContext | None, stall_s: float) -> None:
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
        kept = self._kept.get(endpoint)
        return (kept.pop(), True) if kept else (self.connect(endpoint, server_name), False)

    def keep(self, endpoint: str, stream: socket.socket) -> None:
        """Put back a connection that has nothing under way."""
        self._kept.setdefault(endpoint, []).append(stream)

    def connect(self, endpoint: str, server_name: str) -> socket.socket:
        """A new connection; raises as `connect`."""
        return connect(endpoint, server_name, self._tls, self._stall_s)

    def close(self) -> None:
        """Close all that is kept."""
        for streams in self._kept.values():
            for stream in streams:
                with contextlib.suppress(OSError):
                    stream.close()
        self._kept.clear()


def connect(endpoint: str, server_name: str, tls: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    """A connection to `endpoint` ("host:port"), which with TLS shows a certificate of `server_name`.

    :raises OSError, ValueError: it cannot be reached.
    """
    host, _, port = endpoint.rpartition(":")
    plain = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=server_name)
    except OSError:
        plain.close()
        raise
