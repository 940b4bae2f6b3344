"""Exact reads from blocking sockets."""

import socket


def receive_into(stream: socket.socket, view: memoryview) -> None:
    """Read until `view` is full.

    Raises:
        EOFError: the other side ended before.
        OSError: the connection broke, or brought nothing for its timeout.
    """
    at = 0
    while at < len(view):
        got = stream.recv_into(view[at:])
        if not got:
            raise EOFError(f"after {at} of {len(view)} bytes")
        at += got


def receive_exactly(stream: socket.socket, count: int) -> bytes:
    """Read `count` bytes; raises as `receive_into`."""
    data = bytearray(count)
    receive_into(stream, memoryview(data))
    return bytes(data)
