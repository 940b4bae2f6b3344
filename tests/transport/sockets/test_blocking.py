"""Exact reads from blocking sockets, and digests as messages carry them."""

import socket
import threading
from collections.abc import Iterator

import pytest

from dunlin.transport.sockets.blocking import receive_exactly, receive_into


@pytest.fixture
def pipe() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(300)
        yield near, far


def test_a_read_waits_for_all_of_its_bytes(pipe: tuple[socket.socket, socket.socket]) -> None:
    near, far = pipe

    def speak() -> None:
        for piece in (b"ab", b"c", b"defgh"):
            far.sendall(piece)

    speaker = threading.Thread(target=speak)
    speaker.start()
    assert receive_exactly(near, 7) == b"abcdefg"
    speaker.join()
    assert near.recv(10) == b"h", "what comes after stays in the socket"


def test_bytes_land_where_the_view_is(pipe: tuple[socket.socket, socket.socket]) -> None:
    near, far = pipe
    room = bytearray(b"......")
    far.sendall(b"xyz")
    receive_into(near, memoryview(room)[2:5])
    assert room == b"..xyz."


def test_nothing_is_read_for_nothing(pipe: tuple[socket.socket, socket.socket]) -> None:
    assert receive_exactly(pipe[0], 0) == b""


@pytest.mark.parametrize("sent", [b"", b"abc"])
def test_an_end_before_all_bytes_says_how_far_it_came(pipe: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    near, far = pipe
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError, match=f"after {len(sent)} of 4 bytes"):
        receive_exactly(near, 4)


def test_silence_for_the_sockets_timeout_is_an_error(pipe: tuple[socket.socket, socket.socket]) -> None:
    pipe[0].settimeout(0.01)
    with pytest.raises(TimeoutError):
        receive_exactly(pipe[0], 1)
