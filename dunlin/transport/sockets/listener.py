"""Accepts connections: one listening thread, and one for each connection, of which there are a bounded number."""

import contextlib
import socket
import threading
from collections.abc import Callable

TICK_S = 0.25
IDLE_S, PROBE_S, PROBES = 30, 10, 6
"""A connection on which nothing came for `IDLE_S` is probed every `PROBE_S`; `PROBES` without an answer end it."""

Serve = Callable[[socket.socket], None]


class ConnectionListener:
    """Owns the listening socket and its thread, which accepts from `start` on."""

    def __init__(self, host: str, port: int, *, name: str, most_connections: int) -> None:
        """
        Args:
            host: address to listen on, of IPv6 with or without brackets.
            port: to listen on; 0: any.
            name: of the threads.
            most_connections: at once; the next one is closed.

        Raises:
            OSError: it cannot listen there.
        """
        self._name = name
        self._places = threading.BoundedSemaphore(most_connections)
        self._closing = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host.strip("[]"), port), family=family, backlog=32)
        self._socket.settimeout(TICK_S)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def is_closing(self) -> bool:
        """Whether `close` or `stop` was called."""
        return self._closing.is_set()

    def start(self, serve: Serve, on_tick: Callable[[], None] = lambda: None) -> None:
        """Accept from now on. `serve` is called with each connection, in a thread of its own, and closes it; `on_tick`
        in the listening thread, every `TICK_S` seconds at least.
        """
        self._thread = threading.Thread(target=self._listen, args=(serve, on_tick), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Accept nothing more; returns at once."""
        self._closing.set()

    def close(self) -> None:
        """Accept nothing more, and free the port. Connections go on."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _listen(self, serve: Serve, on_tick: Callable[[], None]) -> None:
        while not self.is_closing:
            on_tick()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # no descriptor is free, say: it would fail at once again
                self._closing.wait(TICK_S)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            self._start_thread(serve, connection)

    def _start_thread(self, serve: Serve, connection: socket.socket) -> None:
        """Serve a connection that has a place; where the system starts no thread more, close it."""
        thread = threading.Thread(target=self._serve, args=(serve, connection), name=self._name, daemon=True)
        try:
            probe_silence(connection)
            thread.start()
        except RuntimeError:
            connection.close()
            self._places.release()

    def _serve(self, serve: Serve, connection: socket.socket) -> None:
        try:
            serve(connection)
        finally:
            self._places.release()


def probe_silence(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other machine went without a word, so that it does not keep its place."""
    with contextlib.suppress(OSError):  # it ended in the meantime
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
