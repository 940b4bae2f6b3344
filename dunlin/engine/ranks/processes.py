"""The processes of ranks 1, 2, …: children of rank 0 that die with it. Loads no torch."""

import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import replace
from threading import Thread

from dunlin.engine.device.names import rank_device
from dunlin.engine.process.options import CANNOT_CONTINUE, ENGINE_MODULE, EngineOptions

GO = b"\1"
GRACE_S = 0.5
"""For a process that has nothing to wait for: it tells the instance itself, and ends."""


class RankProcesses:
    """Owns the other ranks' processes, the sockets to them, and the memory that all ranks share.

    To be made by the thread that lives as long as rank 0: the kernel ends its children with it. They prepare
    themselves, and load the model once they are let `go`.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.shared_fd = os.memfd_create("dunlin-ranks")
        self.rendezvous_fd = os.memfd_create("dunlin-rendezvous")
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

    def end_process_with_them(self) -> None:
        """End this process soon after the first of them. Where devices compute, work that waits for a rank that has
        ended waits for ever, and this process's threads with it.
        """
        Thread(target=self._end_process, name="dunlin-rank-watch", daemon=True).start()

    def go(self) -> None:
        """Let them load the model; one that has ended is noticed where it is waited for."""
        for each in self.sockets:
            try:
                each.sendall(GO)
            except OSError:
                continue

    def _end_process(self) -> None:
        poll = select.poll()
        for process in self._processes:
            poll.register(os.pidfd_open(process.pid), select.POLLIN)
        poll.poll()
        time.sleep(GRACE_S)
        print("dunlin engine: a rank of this engine has ended", file=sys.stderr, flush=True)
        os._exit(CANNOT_CONTINUE)

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
                rendezvous_fd=self.rendezvous_fd,
                device=rank_device(options.device, rank),
            )
            process = subprocess.Popen(
                told.command(ENGINE_MODULE),
                pass_fds=told.fds,
                stdin=subprocess.DEVNULL,
                env=told.environment(os.environ),
            )
        self.sockets.append(ours)
        self._processes.append(process)
