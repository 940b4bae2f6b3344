"""Starts a fork server, and Python processes by it."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from dunlin.runtime.child_exit import RunningProcess
from dunlin.runtime.fork_server.forked_process import ForkedProcess, is_readable
from dunlin.runtime.fork_server.request import ForkError, ForkRequest, receive_reply, send_request, socket_pair
from dunlin.runtime.parent_death import prctl

_PR_SET_CHILD_SUBREAPER = 36
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's library starts threads as it is loaded, and a process with threads is not to be forked."""


class ForkServer:
    """Owns a fork server that has imported some modules. It ends with this object's process, or by `close`."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], connection_fd: int = -1) -> None:
        """Start one that imports the modules now; or take the one that this process was started with.

        Args:
            modules: what it imports.
            environment: of the server itself, where libraries look as they are loaded.
            connection_fd: of a running server (`ForkServer.spawn`, `server_fd`); negative: there is none.
        """
        self._modules, self._environment = tuple(modules), environment
        self._lock = threading.Lock()
        self._is_ready = False
        self._server: RunningProcess | None = None
        if connection_fd < 0:
            self._start()
        else:
            self._connection = socket.socket(fileno=connection_fd)
            self._connection.set_inheritable(False)

    def is_ready(self) -> bool:
        """Whether it has imported all, so that `spawn` takes milliseconds."""
        return self._is_ready or is_readable(self._connection.fileno(), 0.0)

    def spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        fds: Sequence[int] = (),
        output: int | None = None,
        own_group: bool = False,
        server_fd: int = -1,
    ) -> ForkedProcess:
        """Start `command`, which is `PYTHON … -m MODULE ARGUMENTS…`, as a child of this process.

        Waits until the server has imported its modules. A server that ended is started again first.

        Args:
            command: the command line; the words before `-m` were the server's.
            environment: of the process.
            fds: descriptors that it gets under their numbers. It reads nothing (`/dev/null`).
            output: where it writes; None: where this process does.
            own_group: whether it leads a process group of its own.
            server_fd: the descriptor under which it finds a fork server of its own, for `ForkServer`; negative: none.

        Raises:
            ForkError: there is no memory or process to be had.
        """
        at = command.index("-m") + 1
        outputs = (1, 2) if output is None else (output, output)
        request = ForkRequest(
            module=command[at],
            arguments=tuple(command[at + 1 :]),
            environment=dict(environment),
            folder=os.getcwd(),
            fd_numbers=(0, 1, 2, *fds),
            own_group=own_group,
            server_fd=server_fd,
        )
        with self._lock, open(os.devnull, "rb") as nothing:
            return self._ask(request, [nothing.fileno(), *outputs, *fds])

    def close(self) -> None:
        """End it. What it started goes on."""
        self._connection.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _start(self) -> None:
        self._connection, theirs = socket_pair()
        self._is_ready = False
        words = ("--connection-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid()), *self._modules)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", "dunlin.runtime.fork_server", *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**self._environment, **_ONE_THREAD},
                process_group=0,
            )

    def _ask(self, request: ForkRequest, fds: list[int]) -> ForkedProcess:
        try:
            return self._ask_once(request, fds)
        except ConnectionError:
            self.close()
            self._start()
        return self._ask_once(request, fds)

    def _await_modules(self) -> None:
        if not self._is_ready:
            ready = receive_reply(self._connection)
            self._server = self._server or ForkedProcess(ready.pid)
            self._is_ready = True

    def _ask_once(self, request: ForkRequest, fds: list[int]) -> ForkedProcess:
        self._await_modules()
        with _subreaper():
            send_request(self._connection, request, fds)
            reply = receive_reply(self._connection)
        if reply.error:
            if reply.pid:
                ForkedProcess(reply.pid).wait()
            raise ForkError(f"cannot start {request.module}: {reply.error}")
        return ForkedProcess(reply.pid)


@contextmanager
def _subreaper() -> Iterator[None]:
    """A descendant that loses its parent meanwhile becomes a child of this process."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, "PR_SET_CHILD_SUBREAPER")
