"""A process that imports modules once and forks at each request. It has one thread.

It forks twice: the first child ends at once, and the second becomes a child of the requester, a subreaper until
the answer comes (`ForkServer.spawn`). So the requester reaps it, it can be tied to the requester, and it outlives this
server.
"""

import contextlib
import fcntl
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Sequence

from setproctitle import setproctitle

from dunlin.runtime.fork_server.request import ForkReply, ForkRequest, receive_request, send_reply, socket_pair
from dunlin.runtime.frozen_import import import_frozen

_LOOK_S = 0.0002
"""How often a forked process looks whether its first parent is gone, seconds."""


def preload(modules: Sequence[str]) -> None:
    """Import them. One that cannot be imported is left out: the process that runs it says why."""
    for module in modules:
        with contextlib.suppress(ImportError):
            import_frozen(module)


def serve(connection: socket.socket) -> ForkRequest | None:
    """Fork at each request, until the requester is gone.

    Returns in every forked process, with what it is to run; None in a server, at its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the requester
    with contextlib.suppress(ConnectionError):  # the requester is gone
        send_reply(connection, ForkReply(os.getpid()))
        while (received := receive_request(connection)) is not None:
            try:
                first = os.fork()
            except OSError as error:
                send_reply(connection, ForkReply(error=f"fork: {error.strerror}"))
            else:
                if not first:
                    return _become(*received, connection)
                os.waitpid(first, 0)
            for fd in received[1]:
                os.close(fd)
    return None


def run(request: ForkRequest) -> None:
    """Run the module, as `python -m` does."""
    sys.modules.pop(f"{request.module}.__main__", None)  # imported by that name, for what it imports
    sys.argv[1:] = request.arguments
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _become(request: ForkRequest, fds: list[int], connection: socket.socket) -> ForkRequest | None:
    """In the first child: become the process of `request`, or its fork server, which serves; see `serve`."""
    first, answers = os.getpid(), connection
    try:
        if os.fork():
            os._exit(0)
        while os.getppid() == first:
            time.sleep(_LOOK_S)
        lowest_free = max((*request.fd_numbers, request.server_fd)) + 1
        answers = socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, lowest_free))
        connection.close()
        _place(fds, request.fd_numbers, lowest_free)
        own = _own_server(request, answers) if request.server_fd >= 0 else None
        if own is None:
            _take_on(request)
            send_reply(answers, ForkReply(os.getpid()))
            answers.close()
    except OSError as error:
        send_reply(answers, ForkReply(os.getpid() if os.getpid() != first else 0, str(error)))
        os._exit(1)
    return request if own is None else serve(own)


def _place(fds: Sequence[int], numbers: Sequence[int], lowest_free: int) -> None:
    """Make the descriptors those numbers. They are moved out of each other's way first."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, lowest_free) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _own_server(request: ForkRequest, answers: socket.socket) -> socket.socket | None:
    """Fork a server for the process itself. Returns its connection in the server, None in the process."""
    ours, theirs = socket_pair()
    if os.fork():
        theirs.close()
        _place([ours.detach()], [request.server_fd], request.server_fd + 1)
        return None
    ours.close()
    answers.close()
    for number in request.fd_numbers:
        if number > 2:
            os.close(number)
    return theirs


def _take_on(request: ForkRequest) -> None:
    """The title, signals, group, folder and environment of the process."""
    # First: it looks for the environment that the process was started with.
    setproctitle(" ".join(("python", "-m", request.module, *request.arguments)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.own_group:
        os.setpgid(0, 0)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
