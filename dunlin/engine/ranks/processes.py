"""The processes of ranks 1, 2, …: children of rank 0 that die with it. Loads no torch."""

import os
import socket
import subprocess
from dataclasses import replace

from dunlin.engine.process.options import ENGINE_MODULE, EngineOptions

GO = b"\1"


class RankProcesses:
    """Owns the other ranks' processes, the sockets to them, and the memory that all ranks share.

    To be made by the thread that lives as long as rank 0: the kernel ends its children with it. They prepare
    themselves, and load the model once they are let `go`.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.shared_fd = os.memfd_create("dunlin-ranks")
        self.arena_fds = options.rank_arena_fds
        self.sockets: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, options.ranks):
            self._start(options, rank)

    def __repr__(self) -> str:
        return f"[ranks: {[process.pid for process in self._processes]}]"

    def is_alive(self) -> bool:
        """Whether none of them has ended."""
        return all(process.poll() is None for process in self._processes)

    def go(self) -> None:
        """Let them load the model; one that has ended is noticed where it is waited for."""
        for each in self.sockets:
            try:
                each.sendall(GO)
            except OSError:
                continue

    def _start(self, options: EngineOptions, rank: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            told = replace(
                options,
                rank=rank,
                parent_pid=os.getpid(),
                socket_fd=theirs.fileno(),
                arena_fd=self.arena_fds[rank - 1],
                rank_arena_fds=(),
                shared_fd=self.shared_fd,
            )
            process = subprocess.Popen(
                told.command(ENGINE_MODULE),
                pass_fds=told.fds,
                stdin=subprocess.DEVNULL,
                env=told.environment(os.environ),
            )
        self.sockets.append(ours)
        self._processes.append(process)
