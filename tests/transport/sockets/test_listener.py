"""Connections are accepted up to a bound, each served in a thread of its own, until the listener closes."""

import socket
import threading
from queue import Queue

import pytest

from dunlin.transport.sockets.listener import ConnectionListener
from tests.ipv6 import needs_ipv6

PATIENCE_S = 300.0


def dial(listener: ConnectionListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S)


def test_one_more_than_the_bound_is_closed_and_a_place_that_is_free_is_taken_again() -> None:
    listener = ConnectionListener("127.0.0.1", 0, name="test", most_connections=1)
    served, leave = Queue[int](), threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            served.put(connection.getpeername()[1])
            leave.wait(PATIENCE_S)

    listener.start(serve)
    try:
        with dial(listener) as first:
            assert served.get(timeout=PATIENCE_S) == first.getsockname()[1]
            with dial(listener) as second:
                assert second.recv(1) == b"", "it is closed, not served"
            leave.set()
            assert first.recv(1) == b""
        while served.empty():  # the place is free a moment after the connection has ended
            with dial(listener) as third:
                assert third.recv(1) == b""
    finally:
        listener.close()


def test_a_connection_without_a_thread_is_closed_and_the_next_one_served(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = ConnectionListener("127.0.0.1", 0, name="test", most_connections=1)
    start, refused = threading.Thread.start, list[str]()

    def start_the_second(thread: threading.Thread) -> None:
        if thread.name == "test" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"x")

    listener.start(serve)
    monkeypatch.setattr(threading.Thread, "start", start_the_second)
    try:
        with dial(listener) as first:
            assert first.recv(1) == b""
        with dial(listener) as second:
            assert second.recv(1) == b"x"
    finally:
        listener.close()


def test_the_kernel_probes_a_connection_on_which_nothing_comes() -> None:
    listener, options = ConnectionListener("127.0.0.1", 0, name="test", most_connections=1), Queue[list[int]]()

    def serve(connection: socket.socket) -> None:
        with connection:
            of_tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            numbers = [connection.getsockopt(socket.IPPROTO_TCP, name) for name in of_tcp]
            options.put([connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *numbers])

    listener.start(serve)
    try:
        dial(listener).close()
        assert options.get(timeout=PATIENCE_S) == [1, 30, 10, 6]
    finally:
        listener.close()


def test_a_tick_comes_without_a_connection_and_the_port_is_free_after_the_end() -> None:
    listener, ticked = ConnectionListener("127.0.0.1", 0, name="test", most_connections=1), threading.Event()
    port = listener.port
    listener.start(lambda connection: connection.close(), ticked.set)
    assert ticked.wait(PATIENCE_S)
    listener.close()
    assert listener.is_closing
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_may_have_brackets(host: str) -> None:
    listener = ConnectionListener(host, 0, name="test", most_connections=1)
    listener.start(lambda connection: connection.close())
    socket.create_connection(("::1", listener.port), timeout=PATIENCE_S).close()
    listener.close()
