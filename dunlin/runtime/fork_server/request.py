"""What a fork server is asked for, as one packet with file descriptors, and what comes back."""

import json
import socket
from dataclasses import asdict, dataclass

PACKET_BYTES = 1 << 20
"""Of a request at most: an environment and a command line."""
_FDS_MOST = 253
"""What Linux passes with one packet."""


class ForkError(OSError):
    """The server could not start the process; the text says why."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Run `module` as `python -m` would, in a process that is to be the requester's child.

    Attributes:
        module: the module, or a package with a `__main__`.
        arguments: the words after it.
        environment: all of it.
        folder: where the process works.
        fd_numbers: which descriptor each of those that come with the packet is to be; 0, 1 and 2 are among them.
        own_group: whether it leads a process group of its own.
        server_fd: the descriptor of its connection to a fork server of its own, forked from this one; negative: none.
    """

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    fd_numbers: tuple[int, ...]
    own_group: bool = False
    server_fd: int = -1


@dataclass(frozen=True, slots=True)
class ForkReply:
    """What came of a request. The first reply comes without one: all is imported.

    Attributes:
        pid: the process; with an error, one that is about to end and to be reaped, or 0. In the first reply the server.
        error: why nothing runs.
    """

    pid: int = 0
    error: str = ""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection between a fork server and the process that asks it."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    return ends


def send_request(connection: socket.socket, request: ForkRequest, fds: list[int]) -> None:
    """Send a request with its descriptors. Raises OSError when the server is gone."""
    socket.send_fds(connection, [json.dumps(asdict(request)).encode()], fds)


def receive_request(connection: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """The next request with its descriptors; None when the requester is gone."""
    packet, fds, _, _ = socket.recv_fds(connection, PACKET_BYTES, _FDS_MOST)
    if not packet:
        return None
    given = json.loads(packet)
    given["arguments"], given["fd_numbers"] = tuple(given["arguments"]), tuple(given["fd_numbers"])
    return ForkRequest(**given), fds


def send_reply(connection: socket.socket, reply: ForkReply) -> None:
    """Answer a request."""
    connection.sendall(json.dumps(asdict(reply)).encode())


def receive_reply(connection: socket.socket) -> ForkReply:
    """The next answer. Raises ConnectionError when the server is gone."""
    packet = connection.recv(PACKET_BYTES)
    if not packet:
        raise ConnectionResetError("the fork server ended")
    return ForkReply(**json.loads(packet))
