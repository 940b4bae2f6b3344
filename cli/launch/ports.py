"""Ports that stay the same when a service restarts, so that its clients find it again."""

import os
import random
import socket
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from cli.launch.errors import LaunchError

_TRIES = 200
# Below the range from which the kernel takes ports for outgoing connections: nothing else is handed one of these.
_LOWEST, _HIGHEST = 20_000, 32_000
_LAST = 65_535
CLAIM_S = 600.0
"""So long a port that was given out is given to no other cluster of this user: on a busy machine a service needs
minutes until it listens there.
"""


def claim_port(host: str, wanted: int, what: str, taken: Collection[int] = ()) -> int:
    """`wanted` if it is free, or any free port if it is 0, which no other cluster is given for a while. Raises
    LaunchError when there is none.
    """
    if wanted > _LAST:
        raise LaunchError(f"{what}: there is no port {wanted}; choose lower ones (0 = any)")
    if wanted:
        problem = _cannot_bind(host, wanted)
        if problem:
            raise LaunchError(
                f"{what} {endpoint(host, wanted)}: {problem}; stop what listens there or choose another port (0 = any)"
            )
        return wanted
    for port in random.sample(range(_LOWEST, _HIGHEST), _TRIES):
        if port not in taken and not _cannot_bind(host, port) and _reserve(port):
            return port
    raise LaunchError(f"{what}: no free port on {host} between {_LOWEST} and {_HIGHEST}; name one yourself")


def claim_ports(host: str, first: int, count: int, what: str, taken: Collection[int] = ()) -> tuple[int, ...]:
    """`count` ports from `first` on, or any if it is 0. Raises LaunchError when one is not free."""
    claimed: list[int] = []
    for number in range(count):
        claimed.append(claim_port(host, first and first + number, what, {*taken, *claimed}))
    return tuple(claimed)


def endpoint(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets: as URLs, gRPC and `--listen` want it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reserve(port: int) -> bool:
    """Mark the port as given out; False: it was, a short while ago. Where nothing can be written, clusters that start
    at the same moment may be given the same port.
    """
    mark = Path(tempfile.gettempdir()) / f"dunlin-ports-{os.getuid()}" / str(port)
    try:
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        if mark.exists() and time.time() - mark.stat().st_mtime > CLAIM_S:
            mark.unlink(missing_ok=True)
    except OSError:
        return True
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _cannot_bind(host: str, port: int) -> str:
    """Why nothing can listen there, or nothing."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
